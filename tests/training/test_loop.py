import copy
import dataclasses
import math
import os
from functools import partial
from typing import ClassVar

import pytest
import torch

from forgetless import Finetune, NonFiniteError, networks
from forgetless.compute import flops
from forgetless.config import catalogue
from forgetless.data import benchmarks as streams
from forgetless.data.builders import from_tensors
from forgetless.data.stream import Split
from forgetless.methods.er import ER
from forgetless.methods.gdumb import GDumb
from forgetless.methods.icarl import ICaRL
from forgetless.methods.joint import Joint
from forgetless.methods.packnet import PackNet
from forgetless.methods.sgd import SGD
from forgetless.training import loop as training
from forgetless.training import metrics as scores
from forgetless.training.events import Began, Ended, EpochEnded, Repaired, Stepped, TaskEnded, Trained
from forgetless.training.loop import train, with_seed
from helpers import image_stream, narrow_resnet, small_stream, spied

STREAM = small_stream(per_class=30)


def network(seed=0):
    return with_seed(lambda: networks.mlp(6, inputs=4, hidden=(16,)), seed)


def run(method=None, stream=STREAM, model=None, **settings):
    values = {"epochs": 2, "batch": 6, "lr": 0.2, "replay": 6, "buffer": 36, **settings}
    events = list(train(stream, method or SGD(), network() if model is None else model, **values))
    assert isinstance(events[-1], Ended)
    return events, events[-1].result


FINETUNE = Finetune(steps=20, lr=0.3, batch=12)
K_FPF = Finetune.k_fpf(15, steps=10, lr=0.3, batch=12)


def test_events_tell_the_run_in_order():
    events, result = run(epochs=2)
    assert events[0] == Began(tasks=3, steps=60)
    assert [(e.task, e.epoch) for e in events if isinstance(e, EpochEnded)] == [
        (t, n) for t in (1, 2, 3) for n in (1, 2)
    ]
    assert [e.task for e in events if isinstance(e, TaskEnded)] == [1, 2, 3]
    assert [e.step for e in events if isinstance(e, Stepped)] == [10, 20, 30, 40, 50, 60]
    assert result.steps == 60
    assert [e.accuracies for e in events if isinstance(e, TaskEnded)] == list(result.accuracy_matrix)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    weights = []
    for seed in (3, 3, 4):
        _, result = run(ER(), seed=seed)
        weights.append(torch.cat([p.detach().flatten() for p in result.network.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_global_random_state_is_neither_read_nor_moved():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    _, first = run(ER(), finetune=FINETUNE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    _, second = run(ER(), finetune=FINETUNE)
    assert first.accuracy_matrix == second.accuracy_matrix


@pytest.mark.parametrize("name", ["er", "agem", "icarl", "fdr", "der", "derpp"])
def test_up_to_the_finetuning_a_run_with_fpf_is_the_run_without(name):
    method = catalogue.load("method", name)
    _, plain = run(method())
    _, repaired = run(method(), finetune=FINETUNE)
    assert repaired.before_finetuning == plain.accuracy_matrix[-1]
    assert repaired.accuracy_matrix[:-1] == plain.accuracy_matrix[:-1]
    assert repaired.flops["train"] == plain.flops["train"]


def test_fpf_finetunes_once_at_the_end():
    events, result = run(finetune=FINETUNE)
    assert [e.step for e in events if isinstance(e, Repaired)] == [60]
    plain = run()[1]
    assert result.before_finetuning == plain.accuracy_matrix[-1]  # until then it is the same run
    assert result.accuracy_matrix[:2] == plain.accuracy_matrix[:2]


def test_fpf_and_k_fpf_help_on_digits_and_choose_by_sensitivity():
    def digits(finetune):
        model = with_seed(lambda: networks.mlp(10, inputs=64), 0)
        settings = {"epochs": 3, "batch": 10, "lr": 0.1, "buffer": 200}
        return run(stream=streams.seq_digits(), model=model, finetune=finetune, **settings)[1]

    once = digits(Finetune(lr=0.1))
    assert once.profile.chosen == ("fc3",)
    assert sum(once.before_finetuning) / 5 < 25
    assert scores.accuracy(once.accuracy_matrix) > 50
    often = digits(Finetune.k_fpf(50))
    assert set(often.profile.chosen) >= {"fc2", "fc3"}
    assert scores.accuracy(often.accuracy_matrix) > 80


def test_k_fpf_finetunes_every_tau_steps_once_a_shift_was_seen_and_at_the_end():
    events, result = run(finetune=K_FPF)
    # the first epoch of task 2 ends after step 30: from then on S_g is known
    assert [e.step for e in events if isinstance(e, Repaired)] == [45, 60, 60]
    assert len({e.groups for e in events if isinstance(e, Repaired)}) == 1
    assert result.profile.comparisons == 2  # tasks 2 and 3, each with the one before


def test_with_given_groups_k_fpf_finetunes_from_the_start():
    events, _ = run(finetune=Finetune.k_fpf(15, steps=2, groups=("fc2",), batch=12))
    assert [e.step for e in events if isinstance(e, Repaired)] == [15, 30, 45, 60, 60]
    assert all(e.groups == ("fc2",) for e in events if isinstance(e, Repaired))


def test_weights_are_kept_of_the_early_epochs_of_a_task_alone():
    _, result = run(epochs=12)
    assert [(task, epoch) for task, epoch, _ in result.task_changes] == [(t, n) for t in (2, 3) for n in range(1, 11)]
    assert len(result.epoch_changes) == 36
    made = train(STREAM, SGD(), network(), epochs=12, batch=6, lr=0.2)
    steps = (event for event in made if isinstance(event, Stepped))
    while next(steps).step < 150:  # in the second task
        pass
    assert len(made.state_dict()["tracker"]["first"]) == 10


def test_k_fpf_with_more_steps_between_than_there_are_says_so():
    with pytest.warns(
        UserWarning, match="every is 61, but there are 60 steps of training: it finetunes once, at the end"
    ):
        events, _ = run(finetune=Finetune.k_fpf(61, steps=2, groups=("fc2",), batch=12))
    assert [e.step for e in events if isinstance(e, Repaired)] == [60]


ENDINGS = {
    "fpf+er": (ER, FINETUNE),
    "fpf+icarl": (ICaRL, FINETUNE),
    "fpf+packnet": (partial(PackNet, keep=0.5), Finetune(steps=20, lr=0.3, batch=12, groups=("fc2",))),
    "k-fpf-kd": (SGD, Finetune.k_fpf(15, steps=10, lr=0.3, batch=12, distill=0.1)),
    "gdumb": (partial(GDumb, memory_epochs=8), None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_anytime_accuracies_are_those_of_a_stream_that_ends_there_and_the_run_goes_on_as_without(name, device):
    method, finetune = ENDINGS[name]
    how = {"finetune": finetune, "device": device}
    events, result = run(method(), anytime=True, **how)
    shorter = dataclasses.replace(STREAM, tasks=STREAM.tasks[:2])
    assert result.accuracy_matrix[1][:2] == run(method(), shorter, **how)[1].accuracy_matrix[1]
    _, plain = run(method(), **how)
    if device == "cpu":  # with another device's random numbers the 15 images may be told apart alike
        assert result.accuracy_matrix[1] != plain.accuracy_matrix[1]
    for same in ("before_finetuning", "losses", "epoch_changes", "task_changes", "finetunings", "flops", "steps"):
        assert getattr(result, same) == getattr(plain, same), same
    assert result.accuracy_matrix[-1] == plain.accuracy_matrix[-1]
    for one, other in zip(result.network.state_dict().values(), plain.network.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert [e for e in events if isinstance(e, Repaired)] == list(result.finetunings)


def test_anytime_accuracies_are_the_same_after_a_stop():
    how = {"finetune": K_FPF, "anytime": True}
    settings = {"epochs": 2, "batch": 6, "lr": 0.2, "replay": 6, "buffer": 36, **how}
    under_way = train(STREAM, SGD(), network(), **settings)
    ended = 0
    for event in under_way:
        ended += isinstance(event, TaskEnded)
        if ended == 2 and isinstance(event, Stepped) and (state := under_way.state_dict()) is not None:
            break
    under_way.close()
    _, again = run(state=state, **how)
    assert again.accuracy_matrix == run(**how)[1].accuracy_matrix


def test_where_a_task_ends_as_if_all_did_no_state_can_be_taken():
    under_way = train(STREAM, SGD(), network(), batch=6, buffer=36, finetune=FINETUNE, anytime=True)
    before = torch.get_rng_state()
    for event in under_way:
        if isinstance(event, Stepped) and event.step == 20 and under_way.state_dict() is None:
            break  # in the finetuning after the second task, whose last step is the 20th
    else:
        pytest.fail("there was no finetuning after the second task")
    under_way.close()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_method_that_draws_nothing_needs_a_buffer_for_its_finetuning_alone():
    settings = {"finetune": Finetune(steps=2, batch=4, groups=("fc2",)), "batch": 6, "replay": None, "buffer": 5}
    assert len(list(train(STREAM, SGD(), network(), **settings))[-1].result.finetunings) == 1


def test_only_the_chosen_groups_move_in_a_finetuning():
    model = network()
    states = []
    settings = {"epochs": 1, "batch": 6, "lr": 0.2, "buffer": 36}
    finetune = Finetune(steps=5, groups=("fc1",), batch=12)
    for event in train(STREAM, SGD(), model, finetune=finetune, **settings):
        if isinstance(event, EpochEnded | Repaired):
            states.append(copy.deepcopy(model.state_dict()))
    before, after = states[-2:]
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["fc1.weight", "fc1.bias"]


def test_the_changes_of_an_epoch_leave_out_what_finetunings_moved():
    plain = run()[1].epoch_changes
    still = Finetune.k_fpf(4, steps=3, lr=1e-30, batch=12, groups=("fc1",))  # several in an epoch, one at its end
    for (_, _, one), (_, _, other) in zip(plain, run(finetune=still)[1].epoch_changes, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    moving = dataclasses.replace(still, lr=0.3)
    (_, _, first), *_ = run(epochs=1, batch=60, finetune=dataclasses.replace(moving, every=1))[1].epoch_changes
    assert first["fc1"] == pytest.approx(run(epochs=1, batch=60)[1].epoch_changes[0][2]["fc1"], rel=1e-4)


def test_sensitivities_are_the_mean_over_all_epochs_of_consecutive_tasks():
    model = network()
    snapshots = {}
    result = None
    for event in train(STREAM, SGD(), model, epochs=2, batch=6, lr=0.2):
        if isinstance(event, EpochEnded):
            snapshots[event.task, event.epoch] = {n: p.detach().clone() for n, p in model.named_parameters()}
        elif isinstance(event, Ended):
            result = event.result
    change = {}
    for name in snapshots[1, 1]:
        pairs = [(snapshots[t + 1, n][name], snapshots[t, n][name]) for t in (1, 2) for n in (1, 2)]
        change[name] = sum((a - b).abs().sum().item() for a, b in pairs) / 4
    size = {name: p.numel() for name, p in model.named_parameters()}
    of_group = {
        g: (change[f"{g}.weight"] + change[f"{g}.bias"]) / (size[f"{g}.weight"] + size[f"{g}.bias"])
        for g in ("fc1", "fc2")
    }
    total = sum(of_group.values())
    found = {group.name: group.sensitivity for group in result.profile.groups}
    assert found == pytest.approx({g: 2 * value / total for g, value in of_group.items()}, rel=1e-4)


def test_costs_are_counted_once_for_runs_that_compute_the_same(monkeypatch):
    counted = []
    monkeypatch.setattr("forgetless.methods.learner.count", lambda call: (counted.append(1), flops.count(call))[1])
    model = networks.mlp(6, inputs=4, hidden=(11,))
    first = run(ER(), model=copy.deepcopy(model), finetune=K_FPF)[1]
    assert counted
    counted.clear()
    again = run(ER(), model=copy.deepcopy(model), finetune=K_FPF, seed=3)[1]
    assert not counted
    assert again.flops == first.flops
    narrow = run(ER(), model=copy.deepcopy(model), finetune=K_FPF, replay=3)[1]
    assert counted
    assert narrow.flops["train"] < first.flops["train"]


def test_costs_of_a_network_with_frozen_layers_are_its_own():
    frozen = network()
    frozen.fc1.requires_grad_(False)
    run(epochs=1)
    after = run(epochs=1, model=frozen)[1].flops["train"]
    x = torch.empty(6, 4)
    assert after == 30 * flops.training_flops(frozen, x) < 30 * flops.training_flops(network(), x)


def test_a_method_that_is_used_again_begins_anew():
    method = catalogue.load("method", "oewc")()
    model = network()
    weights = copy.deepcopy(model.state_dict())
    first = run(method, model=model)[1].losses
    model.load_state_dict(weights)
    assert run(method, model=model)[1].losses == first


def test_a_network_that_changes_its_input_leaves_the_images_as_they_are():
    class InPlace(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return self.body(x.sub_(0.5).div_(0.5))

    tasks = [
        dataclasses.replace(t, train=Split(t.train.x / 255, t.train.y), test=Split(t.test.x / 255, t.test.y))
        for t in STREAM.tasks
    ]
    stream = dataclasses.replace(STREAM, tasks=tuple(tasks))
    before = [task.test.x.clone() for task in tasks]
    run(ER(), stream, InPlace())
    assert all(torch.equal(task.test.x, x) for task, x in zip(tasks, before, strict=True))


def test_flops_by_phase_are_those_of_the_passes_made():
    _, result = run(epochs=1, finetune=Finetune(steps=7, groups=("fc2",), batch=12))
    one = flops.training_flops(network(), torch.empty(1, 1, 2, 2))
    assert result.flops["train"] == 180 * one
    forward = flops.forward_flops(network(), torch.empty(1, 1, 2, 2))
    assert result.flops["finetune"] == 7 * 12 * (forward + 2 * 16 * 6)
    _, result = run(ER(), epochs=1)
    replayed = 6 * 29  # six with every batch but the first
    assert result.flops["train"] == (180 + replayed) * one


def test_joint_trains_on_everything_at_once():
    events, result = run(Joint(), epochs=10)
    assert events[0] == Began(tasks=1, steps=300)
    assert len(result.accuracy_matrix) == 1
    assert scores.accuracy(result.accuracy_matrix) > 70


def test_a_frozen_group_stays_after_the_first_task():
    model = network()
    after = {}
    for event in train(STREAM, SGD(), model, epochs=1, batch=6, lr=0.2, freeze=["fc1"]):
        if isinstance(event, TaskEnded):
            after[event.task] = copy.deepcopy(model.state_dict())
    assert torch.equal(after[1]["fc1.weight"], after[3]["fc1.weight"])
    assert not torch.equal(after[1]["fc2.weight"], after[3]["fc2.weight"])
    assert not torch.equal(network().state_dict()["fc1.weight"], after[1]["fc1.weight"])


class Scaled(torch.nn.Sequential):
    """An MLP in a module that has a buffer of its own, which counts while it trains, and dropout below it."""

    def __init__(self):
        super().__init__(network(), torch.nn.Dropout(0.1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


def test_a_frozen_buffer_stays_and_what_is_below_its_module_trains_on():
    model = Scaled()
    calls = {}
    for event in train(STREAM, SGD(), model, batch=6, lr=0.05, freeze="buffers"):
        if isinstance(event, TaskEnded):
            calls[event.task] = float(model.calls), model[1].training
    assert calls == {1: (10.0, True), 2: (10.0, True), 3: (10.0, True)}


def test_frozen_batch_norm_statistics_stay_too():
    stream = small_stream(per_class=8)
    model = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    after = {}
    for event in train(stream, SGD(), model, epochs=1, batch=8, lr=0.05, freeze=["bn.affine", "bn.stats"]):
        if isinstance(event, TaskEnded):
            after[event.task] = copy.deepcopy(model.state_dict())
    moved = {name for name in after[1] if not torch.equal(after[1][name], after[3][name])}
    assert not [name for name in moved if "bn" in name or "shortcut.1" in name]
    assert "conv1.weight" in moved


@pytest.mark.parametrize("name", [n for n in catalogue.METHODS if n not in ("joint", "gdumb")])
def test_kd_composes_where_logits_are_stored_and_is_refused_at_once_where_not(name):
    method = catalogue.load("method", name)()
    finetune = Finetune(steps=2, distill=0.5, batch=12)
    if name in ("agem", "icarl"):
        with pytest.raises(ValueError, match="distill is 0.5, but the memory of .* holds no logits"):
            run(method, finetune=finetune)
    else:
        assert run(method, finetune=finetune)[1].finetunings


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"epochs": 0}, "epochs is 0; it must be a whole number of 1 or more"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": math.nan}, "lr is nan; it must be a finite number above 0"),
        (
            {"method": ER(), "buffer": 5},
            r"buffer is 5; 6 examples are drawn at a time \(replay\), so it must be 6 or more",
        ),
        ({"finetune": Finetune(batch=40)}, "buffer is 36; finetuning draws 40 at a time"),
        ({"finetune": Finetune(steps=0)}, "steps is 0"),
        ({"finetune": Finetune.k_fpf(0)}, "every is 0"),
        (
            {"method": GDumb(), "finetune": FINETUNE},
            "groups is 'auto', but GDumb never trains on one task after another",
        ),
        ({"method": ICaRL(), "stream": small_stream(scenario="domain")}, "ICaRL is for class-incremental streams only"),
        ({"freeze": ["fc9"]}, "no group named 'fc9'"),
        ({"freeze": "fc9"}, "no group named 'fc9'"),
        ({"freeze": ["fc1", "fc2"]}, "freeze is fc1, fc2; nothing would be left to train"),
        ({"method": Joint(), "freeze": ["fc1"]}, "freeze is fc1, but Joint has no second task before which to freeze"),
        (
            {"freeze": ["fc2"], "finetune": Finetune(groups=("fc2",), batch=12)},
            "groups is fc2, freeze is fc2; nothing would be left to finetune",
        ),
        ({"lr": "0.1"}, "lr is '0.1'; it must be a finite number above 0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must be a finite number of 0 or more"),
        ({"buffer": -3}, "buffer is -3; it must be a whole number of 1 or more"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
        ({"finetune": Finetune(threshold="a", batch=12)}, "threshold is 'a'; it must be a finite number"),
    ],
)
def test_bad_settings_are_refused_before_training(settings, match):
    with pytest.raises(ValueError, match=match):
        run(**settings)


def test_where_no_group_is_above_the_threshold_the_run_ends_without_a_finetuning():
    with pytest.warns(UserWarning, match=r"nothing was finetuned at the end: no S_g is above the threshold 50"):
        _, result = run(finetune=Finetune(threshold=50.0, batch=12))
    assert result.finetunings == ()
    assert result.accuracy_matrix == run()[1].accuracy_matrix
    assert result.profile.chosen == ()


def test_where_a_method_has_frozen_what_is_chosen_nothing_is_said_to_be_finetuned():
    class Fixing(SGD):
        """Keeps the statistics of the first task."""

        def end_task(self, learner, task, number):
            for module in learner.network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()

    model = with_seed(lambda: networks.resnet18(4, width=4), 0)
    with pytest.warns(UserWarning, match=r"nothing was finetuned at the end: bn\.stats, which is chosen, is frozen"):
        *_, end = train(
            image_stream(), Fixing(), model, epochs=1, batch=8, lr=0.05, buffer=24,
            finetune=Finetune(steps=3, groups=("bn.stats",), batch=8),
        )  # fmt: skip
    assert end.result.finetunings == end.result.profile.chosen == ()


def test_groups_that_are_frozen_by_then_are_not_said_to_be_finetuned():
    _, result = run(freeze=["fc1"], finetune=Finetune(steps=5, groups="all", batch=12))
    assert result.finetunings[0].groups == result.profile.chosen == ("fc2",)


def test_frozen_statistics_are_not_moved_by_a_finetuning_and_statistics_alone_can_be():
    stream = image_stream()
    for freeze, groups in ((["bn.stats"], "all"), ([], ("bn.stats",))):
        model = with_seed(lambda: networks.resnet18(4, width=4), 0)
        events = train(
            stream, SGD(), model, epochs=1, batch=8, lr=0.05, buffer=24, freeze=freeze,
            finetune=Finetune(steps=3, groups=groups, batch=8),
        )  # fmt: skip
        for event in events:
            if isinstance(event, Trained):
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        statistics = {name for name in before if "running" in name or "num_batches" in name}
        assert moved == (before.keys() - statistics if freeze else statistics)


def test_a_step_without_a_column_that_is_needed_is_named():
    class Mute(SGD):
        def step(self, learner, batch):
            return super().step(learner, batch)[0], {}

    with pytest.raises(ValueError, match="the step of Mute gives no column logits, which its columns or a finetuning"):
        run(Mute(), finetune=Finetune(distill=0.5, batch=12))


def test_a_memory_that_there_is_not_is_refused():
    @dataclasses.dataclass
    class Typo(ER):
        memory: ClassVar[str] = "resevoir"

    with pytest.raises(ValueError, match="Typo.memory is 'resevoir'; it must be none, reservoir, balanced or own"):
        run(Typo())


def test_examples_that_are_not_finite_are_named():
    x = torch.rand(40, 4)
    x[3] = torch.nan
    stream = from_tensors(x, torch.arange(40) % 4, [2, 2])
    with pytest.raises(NonFiniteError, match="in epoch 1 of task 2; the examples of this task hold NaN or inf"):
        list(train(stream, SGD(), networks.mlp(4, inputs=4), batch=4))


def test_joint_has_seen_all_tasks_after_its_one():
    (ended,) = (
        event
        for event in train(small_stream(), Joint(), networks.mlp(6, inputs=4), batch=6)
        if isinstance(event, TaskEnded)
    )
    assert (ended.task, ended.seen) == (1, 3)


def test_a_loss_that_is_not_finite_names_the_epoch():
    with pytest.raises(NonFiniteError, match="the loss became .* in epoch 1 of task 1; try a smaller lr than 1e"):
        run(lr=1e20)


def test_on_a_gpu_or_not_the_network_is_where_it_is_said(device):
    _, result = run(ER(), device=device, finetune=FINETUNE)
    assert next(result.network.parameters()).device.type == device


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA names no folder with the real data")
@pytest.mark.parametrize("seed", [0, 1])
def test_on_seq_mnist_fpf_chooses_the_last_layer_and_k_fpf_the_last_two(seed):
    # From Xavier's weights S of fc1 lies about the threshold of k-FPF, 0.3; docs/results.md shows what is chosen there.
    def chosen(finetune):
        model = with_seed(lambda: networks.mlp(10, xavier=False), seed)
        settings = {"epochs": 1, "batch": 10, "lr": 0.03, "buffer": 500, "seed": seed}
        return run(stream=streams.seq_mnist(), model=model, finetune=finetune, **settings)[1].profile

    once = chosen(Finetune(steps=5))
    assert once.chosen == ("fc3",)
    assert round(100 * once.share, 2) == 1.13
    often = chosen(Finetune.k_fpf(500, steps=5))
    assert often.chosen == ("fc2", "fc3")
    assert round(100 * often.share, 2) == 12.40


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_is_compiled_for_training_too():
    """FLOPs are counted in its first step, and torch compiles nothing that was counted as it was compiled."""
    seen = set()

    def backend(graph, _):
        def call(*inputs):
            seen.add(torch.is_grad_enabled())
            return graph(*inputs)

        return call

    run(ER(), model=torch.compile(network(), backend=backend))
    assert seen == {True, False}


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_trains_as_itself():
    _, plain = run(ER(), finetune=FINETUNE)
    _, compiled = run(ER(), model=torch.compile(network(), backend="eager"), finetune=FINETUNE)
    assert compiled.accuracy_matrix == plain.accuracy_matrix
    assert compiled.profile.chosen == plain.profile.chosen


def test_the_seconds_of_what_is_under_way_are_in_a_state(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    going = train(STREAM, SGD(), network(), epochs=2, batch=6, lr=0.2, buffer=36, finetune=K_FPF)
    seen = []
    for event in going:
        if isinstance(event, Stepped):
            now[0] += 1.0  # after each ten steps, of the method or of a finetuning
            seen.append(going.state_dict()["seconds"])
    assert [found["total"] for found in seen] == [float(i + 1) for i in range(len(seen))]
    assert all(found["train"] + found["finetune"] == found["total"] for found in seen)
    assert seen[-1]["finetune"] == 3.0  # finetunings of ten steps: at step 45, at 60 and at the end
    assert seen[-1]["train"] == 6.0


class Wordy(torch.nn.Module):
    """Gives its logits in a mapping."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)

    def forward(self, x):
        return {"logits": self.fc(x.flatten(1))}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"stream": "seq-digits"}, "stream is 'seq-digits'; it must be an object of the class Stream"),
        ({"method": ER}, "method is the class ER; it must be an object of the class Method"),
        ({"method": "er"}, "method is 'er'; it must be an object of the class Method"),
        ({"network": "mlp"}, "network is 'mlp'; it must be an object of the class Module"),
        ({"finetune": {"steps": 3}}, r"finetune is {'steps': 3}; it must be Finetune"),
        ({"network": Wordy()}, "the network gives a dict; it must give logits, a tensor"),
    ],
)
def test_what_is_no_stream_method_network_or_finetune_is_refused(change, match):
    given = {"stream": small_stream(), "method": ER(), "network": networks.mlp(6, inputs=4), "finetune": None} | change
    with pytest.raises(ValueError, match=match):
        list(train(given.pop("stream"), given.pop("method"), given.pop("network"), buffer=40, **given))


@pytest.mark.parametrize("name", ["er", "oewc", "fdr"])
def test_tokens_stay_whole_numbers(name):
    y = torch.arange(240) % 4
    x = torch.randint(8, (240, 6), generator=torch.Generator().manual_seed(0)) + 8 * y[:, None]
    stream = from_tensors(x, y, sizes=[2, 2], name="tokens")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Flatten(), torch.nn.Linear(48, 4))
    method = catalogue.load("method", name)()
    finetune = Finetune(groups=("head",), steps=3, lr=1e-6, batch=10)
    *_, last = train(stream, method, network, epochs=3, batch=10, lr=0.3, buffer=40, finetune=finetune)
    assert last.result.accuracy_matrix[0][0] > 90  # the numbers tell the classes


def test_what_diverges_at_the_end_is_an_error():
    method = GDumb(memory_epochs=10, lr_high=1e20)
    with pytest.raises(NonFiniteError, match="in what GDumb does at the end; try a smaller learning rate"):
        list(train(small_stream(), method, networks.mlp(6, inputs=4), batch=6, buffer=36))


@pytest.mark.parametrize("anytime", [False, True])
def test_a_run_may_stop_inside_what_gdumb_does_at_the_end(anytime):
    def start(state=None):
        network = with_seed(lambda: networks.mlp(6, inputs=4), 0)
        method = GDumb(memory_epochs=5)
        return train(
            small_stream(), method, network, batch=6, buffer=36, finetune=Finetune(groups=("fc3",), steps=3, batch=12),
            anytime=anytime, seed=1, state=state,
        )  # fmt: skip

    whole, states = start(), []
    for event in whole:
        state = whole.state_dict()
        if isinstance(event, Stepped) and state is not None and state["finishing"]:
            states.append(state)
    assert len(states) == 5
    for state in states:
        again = start(state)
        *_, last = again
        assert last.result.accuracy_matrix == event.result.accuracy_matrix
        assert last.result.flops == event.result.flops
        for one, other in zip(again.network.parameters(), whole.network.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_finetuning_crops_by_its_own_pad():
    stream = dataclasses.replace(image_stream(), mirror=True)  # crops by 1

    def weights(pad, stream=stream):
        network = with_seed(lambda: networks.resnet18(4, width=2), 0)
        groups = ("bn.affine", "bn.stats", "fc")
        finetune = Finetune.k_fpf(4, steps=3, groups=groups, pad=pad)
        events = list(train(stream, SGD(), network, batch=16, buffer=40, finetune=finetune))
        assert sum(isinstance(event, Repaired) for event in events) == 3  # after 4 and 8 steps, at the end
        return torch.cat([value.flatten().float() for value in network.state_dict().values()])

    assert torch.equal(weights(1), weights(0))
    assert not torch.equal(weights(2), weights(0))
    bare = dataclasses.replace(stream, pad=0, mirror=False)
    assert not torch.equal(weights(1, bare), weights(0, bare))


def test_the_pad_of_a_finetuning_is_checked_first():
    network = networks.mlp(4, inputs=192)
    for pad, said in (
        (-1, "pad is -1; it must be a whole number of"),
        (8, "is 8; it must be below the images' 8 pixels"),
    ):
        with pytest.raises(ValueError, match=said):
            train(image_stream(), SGD(), network, buffer=40, finetune=Finetune(pad=pad))
    x, y = torch.rand(40, 6), torch.arange(2).repeat(20)
    plain = from_tensors(x, y, [2])
    with pytest.raises(ValueError, match=r"it must be 0: an example has shape \(6,\), no image"):
        train(plain, SGD(), networks.mlp(2, inputs=6), buffer=40, finetune=Finetune(pad=1))


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


@pytest.mark.parametrize("method", [GDumb, ICaRL])
def test_a_policy_is_refused_where_the_method_fills_the_buffer_itself(method):
    with pytest.raises(ValueError, match=f"policy is 'balanced', but {method.__name__} fills the buffer in a way of"):
        run(method(), policy="balanced")


def test_a_policy_without_a_buffer_or_of_another_name_is_refused():
    with pytest.raises(ValueError, match="policy is 'balanced', but neither SGD nor a finetuning keeps a buffer"):
        run(SGD(), policy="balanced")
    with pytest.raises(ValueError, match="policy is 'ring'; it must be one of reservoir, balanced"):
        run(ER(), policy="ring")


def test_what_is_not_finetuned_is_told_by_its_reason():
    x, y = torch.rand(80, 6), torch.arange(4).repeat(20)

    def said(stream, method):
        network = networks.mlp(4, inputs=6)
        with pytest.warns(UserWarning, match="nothing was finetuned at the end") as told:
            list(train(stream, method, network, buffer=40, finetune=Finetune(steps=2)))
        return str(told[0].message)

    class Still(SGD.__base__):
        def step(self, learner, batch):
            logits = learner.forward(learner.augment(batch.x))
            return logits.sum().detach(), {"logits": logits.detach()}

    assert "the stream has one task" in said(from_tensors(x, y, [4]), SGD())
    assert "no parameter moved" in said(from_tensors(x, y, [2, 2]), Still())


def test_a_step_that_takes_bytes_for_inputs_is_told_what_makes_them():
    class Bare(SGD.__base__):
        def step(self, learner, batch):
            logits = learner.forward(batch.x)
            return logits.sum().detach(), {}

    with pytest.raises(RuntimeError, match=r"learner\.augment\(batch\.x\) makes inputs of them"):
        list(train(image_stream(), Bare(), networks.mlp(4, inputs=192)))


def test_a_network_that_was_frozen_in_a_run_is_the_callers_again():
    network = networks.mlp(6, inputs=4, hidden=(8,))
    *_, last = train(small_stream(), SGD(), network, batch=6, freeze="fc1")
    assert last.result.network is network
    assert all(parameter.requires_grad for parameter in network.parameters())
    norm = narrow_resnet(6, 1)
    list(train(small_stream(), SGD(), norm, batch=6, lr=1e-3, freeze=("bn.affine", "bn.stats")))
    assert all(module.training == norm.training for module in norm.modules())
    assert all(parameter.requires_grad for parameter in norm.parameters())


def test_where_a_method_tells_no_sensitivity_that_of_the_finetuning_is_not_told():
    finetune = Finetune.k_fpf(5, steps=3, batch=6, groups=("fc2",))
    network = networks.mlp(6, inputs=4, hidden=(8,))
    *_, last = train(small_stream(), GDumb(memory_epochs=1), network, batch=6, buffer=12, finetune=finetune)
    assert last.result.finetunings
    assert all(group.sensitivity is None for group in last.result.profile.groups)
    assert last.result.profile.chosen == ("fc2",)


class Holder(ER):
    """Does something at the end, and holds what cannot be put back."""

    def begin(self, learner):
        super().begin(learner)
        self.held = {1, 2}

    def finish(self, learner):
        pass


def test_an_end_that_could_not_be_undone_is_told_before_the_first_step():
    with pytest.raises(ValueError, match="anytime is True, but .* cannot be undone: Holder holds held, a set"):
        next(train(small_stream(), Holder(), networks.mlp(6, inputs=4), batch=6, buffer=12, anytime=True))
