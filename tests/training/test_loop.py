import copy
import dataclasses

import pytest
import torch

from forgetless import Finetune, networks
from forgetless.compute import flops
from forgetless.config import catalogue
from forgetless.data.builders import from_tensors
from forgetless.data.stream import Split
from forgetless.methods.er import ER
from forgetless.methods.joint import Joint
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training import metrics
from forgetless.training.events import Began, EpochEnded, Stepped, TaskEnded
from forgetless.training.loop import train
from helpers import FINETUNE, K_FPF, run_small, small_network, small_stream, spied

STREAM = small_stream(per_class=30)


def test_events_come_in_order():
    events, result = run_small(epochs=2)
    assert events[0] == Began(tasks=3, steps=60)
    assert [(e.task, e.epoch) for e in events if isinstance(e, EpochEnded)] == [
        (t, n) for t in (1, 2, 3) for n in (1, 2)
    ]
    assert [e.task for e in events if isinstance(e, TaskEnded)] == [1, 2, 3]
    assert [e.step for e in events if isinstance(e, Stepped)] == [10, 20, 30, 40, 50, 60]
    assert result.steps == 60
    assert [e.accuracies for e in events if isinstance(e, TaskEnded)] == list(result.accuracy_matrix)


def test_only_the_same_seed_repeats_a_run():
    weights = []
    for seed in (3, 3, 4):
        _, result = run_small(ER(), seed=seed)
        weights.append(torch.cat([p.detach().flatten() for p in result.network.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_learning_rate_falls_within_each_task():
    rates, ends = [], []

    class Noting(SGD):
        def step(self, learner, batch):
            rates.append(learner.lr)
            return super().step(learner, batch)

        def end_task(self, learner, task, number):
            ends.append(learner.lr)

    run_small(Noting(), epochs=10, batch=60, lr=0.2, lr_decay=0.1)  # a step per epoch
    assert rates == pytest.approx([*[0.2] * 7, 0.02, 0.02, 0.002] * 3)
    assert ends == [0.2] * 3


def test_a_run_resumes_with_the_learning_rate_of_its_epoch():
    settings = {"epochs": 4, "batch": 3, "lr": 0.2, "lr_decay": 0.1}  # 20 steps per epoch

    def weights(run):
        *_, last = run
        return torch.cat([p.detach().flatten() for p in last.result.network.parameters()])

    whole = weights(train(STREAM, SGD(), small_network(), **settings))
    run = train(STREAM, SGD(), small_network(), **settings)
    state = next(
        run.state_dict() for event in run if isinstance(event, Stepped) and event.step == 70
    )  # in the 4th epoch
    assert torch.equal(weights(train(STREAM, SGD(), small_network(), state=state, **settings)), whole)


def test_the_global_random_state_is_neither_used_nor_changed():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    _, first = run_small(ER(), finetune=FINETUNE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    _, second = run_small(ER(), finetune=FINETUNE)
    assert first.accuracy_matrix == second.accuracy_matrix


@pytest.mark.parametrize("name", ["er", "agem", "icarl", "fdr", "der", "derpp"])
def test_until_its_finetuning_fpf_trains_as_without_it(name):
    method = catalogue.load("method", name)
    _, plain = run_small(method())
    _, repaired = run_small(method(), finetune=FINETUNE)
    assert repaired.before_finetuning == plain.accuracy_matrix[-1]
    assert repaired.accuracy_matrix[:-1] == plain.accuracy_matrix[:-1]
    assert repaired.flops["train"] == plain.flops["train"]


def test_joint_trains_on_all_tasks_at_once():
    events, result = run_small(Joint(), epochs=10)
    assert events[0] == Began(tasks=1, steps=300)
    assert [(e.task, e.seen) for e in events if isinstance(e, TaskEnded)] == [(1, 3)]
    assert len(result.accuracy_matrix) == 1
    assert metrics.accuracy(result.accuracy_matrix) > 70


def test_a_method_can_be_used_for_a_second_run():
    method = catalogue.load("method", "oewc")()
    model = small_network()
    weights = copy.deepcopy(model.state_dict())
    first = run_small(method, model=model)[1].losses
    model.load_state_dict(weights)
    assert run_small(method, model=model)[1].losses == first


def test_a_network_that_changes_inputs_leaves_data_unchanged():
    class InPlace(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = small_network()

        def forward(self, x):
            return self.body(x.sub_(0.5).div_(0.5))

    tasks = [
        dataclasses.replace(t, train=Split(t.train.x / 255, t.train.y), test=Split(t.test.x / 255, t.test.y))
        for t in STREAM.tasks
    ]
    stream = dataclasses.replace(STREAM, tasks=tuple(tasks))
    before = [task.test.x.clone() for task in tasks]
    run_small(ER(), stream, InPlace())
    assert all(torch.equal(task.test.x, x) for task, x in zip(tasks, before, strict=True))


def test_the_network_is_on_the_device_of_the_settings(device):
    _, result = run_small(ER(), device=device, finetune=FINETUNE)
    assert next(result.network.parameters()).device.type == device


@pytest.mark.parametrize("name", ["er", "oewc", "fdr"])
def test_tokens_stay_integers(name):
    y = torch.arange(240) % 4
    x = torch.randint(8, (240, 6), generator=torch.Generator().manual_seed(0)) + 8 * y[:, None]
    stream = from_tensors(x, y, sizes=[2, 2], name="tokens")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Flatten(), torch.nn.Linear(48, 4))
    method = catalogue.load("method", name)()
    finetune = Finetune(groups=("head",), steps=3, lr=1e-6, batch=10)
    *_, last = train(stream, method, network, epochs=3, batch=10, lr=0.3, buffer=40, finetune=finetune)
    assert last.result.accuracy_matrix[0][0] > 90  # the numbers tell the classes


def unequal_stream():
    """Two tasks; of the four classes 60, 8, 30 and 4 examples."""
    y = torch.repeat_interleave(torch.arange(4), torch.tensor([60, 8, 30, 4]))
    x = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    return from_tensors(x, y, [2, 2])


@pytest.mark.parametrize(("name", "finetune"), [("sgd", K_FPF), ("er", None)])
def test_a_balanced_buffer_keeps_the_rare_classes(name, finetune):
    counts = []
    for policy in ("reservoir", "balanced"):
        model = with_seed(lambda: networks.mlp(4, inputs=4, hidden=(8,)), 0)
        method = spied(name)()
        list(train(unequal_stream(), method, model, epochs=2, batch=6, buffer=16, policy=policy, finetune=finetune))
        counts.append(method.learner.buffer["y"].bincount(minlength=4).tolist())
    assert counts[0] != [4, 4, 4, 4]
    assert counts[1] == [4, 4, 4, 4]


def test_less_replay_lowers_the_flops():
    model = networks.mlp(6, inputs=4, hidden=(11,))
    first = run_small(ER(), model=copy.deepcopy(model), finetune=K_FPF)[1]
    again = run_small(ER(), model=copy.deepcopy(model), finetune=K_FPF, seed=3)[1]
    assert again.flops == first.flops
    narrow = run_small(ER(), model=copy.deepcopy(model), finetune=K_FPF, replay=3)[1]
    assert narrow.flops["train"] < first.flops["train"]


def test_frozen_layers_lower_the_flops():
    frozen = small_network()
    frozen.fc1.requires_grad_(False)
    after = run_small(epochs=1, model=frozen)[1].flops["train"]
    x = torch.empty(6, 4)
    assert after == 30 * flops.training_flops(frozen, x) < 30 * flops.training_flops(small_network(), x)


def test_flops_by_phase_match_the_passes_made():
    _, result = run_small(epochs=1, finetune=Finetune(steps=7, groups=("fc2",), batch=12))
    one = flops.training_flops(small_network(), torch.empty(1, 1, 2, 2))
    assert result.flops["train"] == 180 * one
    forward = flops.forward_flops(small_network(), torch.empty(1, 1, 2, 2))
    assert result.flops["finetune"] == 7 * 12 * (forward + 2 * 16 * 6)
    _, result = run_small(ER(), epochs=1)
    replayed = 6 * 29  # six with every batch but the first
    assert result.flops["train"] == (180 + replayed) * one


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_is_compiled_for_training_too():
    """FLOPs are counted in its first step, and torch compiles nothing that was counted as it was compiled."""
    seen = set()

    def backend(graph, _):
        def call(*inputs):
            seen.add(torch.is_grad_enabled())
            return graph(*inputs)

        return call

    run_small(ER(), model=torch.compile(small_network(), backend=backend))
    assert seen == {True, False}


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_trains_like_the_plain_one():
    _, plain = run_small(ER(), finetune=FINETUNE)
    _, compiled = run_small(ER(), model=torch.compile(small_network(), backend="eager"), finetune=FINETUNE)
    assert compiled.accuracy_matrix == plain.accuracy_matrix
    assert compiled.profile.chosen == plain.profile.chosen
