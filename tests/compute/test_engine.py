import copy

import pytest
import torch
from torch import nn

from forgetless import METHODS, Finetune, networks, train
from forgetless.compute.engine import Engine
from forgetless.config import catalogue
from forgetless.methods.er import ER
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended, Stepped
from forgetless.training.repair import PROGRESS
from helpers import image_stream, on_gpu, small_stream, spied


def run(method, stream=None, model=None, **settings):
    values = {"epochs": 2, "batch": 8, "lr": 0.05, "buffer": 24, **settings}
    model = with_seed(lambda: networks.resnet18(4, width=4), 0) if model is None else model
    for event in train(stream or image_stream(), method, model, **values):
        if isinstance(event, Ended):
            return event.result
    raise AssertionError


def test_batch_norm_leaves_out_a_batch_of_one():
    stream = image_stream(per_task=18)
    mlp = with_seed(lambda: networks.mlp(4, inputs=3 * 8 * 8), 0)
    assert run(SGD(), stream, batch=17).steps == 2 * 2
    assert run(SGD(), stream, mlp, batch=17).steps == 2 * 2 * 2
    sizes = {}
    for name in ("gdumb", "packnet"):  # they train at the end of a task or of all
        method = catalogue.load("method", name)()
        method.memory_epochs = method.retrain_epochs = 1
        model = with_seed(lambda: networks.resnet18(4, width=4), 0)
        seen = sizes[name] = set()
        model.register_forward_pre_hook(lambda m, inputs, seen=seen: seen.add(len(inputs[0])) if m.training else None)
        run(method, stream, model, batch=17, buffer=18, capture=False)
    assert sizes == {"gdumb": {17}, "packnet": {17}}


def test_a_run_with_a_left_out_image_resumes_anywhere():
    stream = image_stream(per_task=18)

    def start(state=None):
        model = with_seed(lambda: networks.resnet18(4, width=4), 0)
        return train(stream, ER(), model, epochs=20, batch=17, lr=0.05, buffer=24, replay=8, state=state)

    whole, states = start(), []
    for event in whole:
        if isinstance(event, Stepped):
            states.append(whole.state_dict())
        if isinstance(event, Ended):
            expected = event.result
    assert len(states) == 2 * 20 // PROGRESS
    for state in states:
        *_, last = start(state)
        assert last.result.steps == expected.steps == 40
        for one, other in zip(expected.network.parameters(), last.result.network.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_cpu_makes_every_call():
    engine, calls = Engine(), []
    for _ in range(3):
        engine.call("key", lambda: calls.append(1))
    assert len(calls) == 3
    assert not engine.captures


def test_persistent_values_are_built_once():
    engine = Engine()
    assert engine.persistent("a", list) is engine.persistent("a", list)
    assert engine.persistent("a", list) is not engine.persistent("b", list)


def test_each_run_has_its_own_global_random_numbers():
    one, other = Engine(seed=1), Engine(seed=2)
    before = torch.get_rng_state()
    drawn = {}
    for name, engine in (("a", one), ("b", other), ("c", one)):
        with engine.active():
            drawn[name] = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(torch.cat([drawn["a"], drawn["c"]]), torch.cat([torch.rand(3), torch.rand(3)]))
    assert not torch.equal(drawn["a"], drawn["b"])


def test_dropout_ignores_earlier_draws():
    def dropping():
        return with_seed(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 6)), 0)

    weights = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        result = run(SGD(), small_stream(), dropping())
        weights.append(result.network[1].weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("name", "match"), [("gpu", "device is 'gpu'; it must be cpu, cuda"), ("cuda:99", "but torch sees . GPUs here")]
)
def test_a_missing_device_is_refused(name, match):
    with pytest.raises(ValueError, match=match):
        train(small_stream(), SGD(), networks.mlp(6, inputs=4), device=name)


@on_gpu
@pytest.mark.parametrize("name", list(METHODS))
def test_captured_steps_equal_called_steps(name):
    """200 steps: the same examples in the buffer, and losses that differ by rounding only."""
    found = []
    for capture in (False, True):
        method = spied(name)()
        if name == "gdumb":
            method.epochs = 10
        model = (
            with_seed(lambda: networks.mlp(4, inputs=3 * 8 * 8), 0) if name == "hat" else None
        )  # no batch norm for it
        result = run(method, model=model, epochs=13, capture=capture, device="cuda", deterministic=True, seed=3)
        found.append((result, method.learner))
    (called, one), (replayed, other) = found
    assert called.steps == 208
    assert replayed.engine["captured"]
    for (*_, a), (*_, b) in zip(called.losses, replayed.losses, strict=True):
        assert abs(a - b) < 1e-5
    if method.memory != "none":
        assert len(one.buffer) == len(other.buffer) > 0
        for column in ("x", "y"):
            assert torch.equal(one.buffer[column], other.buffer[column])
    assert called.accuracy_matrix == replayed.accuracy_matrix
    assert called.flops == replayed.flops


@on_gpu
def test_a_compiled_network_is_captured_compiled():
    """Nothing is compiled while FLOPs are counted, in the first call, nor in a capture."""
    seen = set()

    def backend(graph, _):
        def call(*inputs):
            images = [x for x in inputs if torch.is_tensor(x) and x.shape[1:] == (3, 8, 8)]
            seen.update((len(x), torch.is_grad_enabled()) for x in images)
            return graph(*inputs)

        return call

    model = torch.compile(with_seed(lambda: networks.resnet18(4, width=4), 0), backend=backend)
    assert run(SGD(), model=model, device="cuda").engine["captured"]
    assert (8, True) in seen


@on_gpu
@pytest.mark.parametrize(("distill", "policy"), [(0.0, "reservoir"), (0.5, "reservoir"), (0.5, "balanced")])
def test_captured_finetuning_equals_called_finetuning(distill, policy):
    found = []
    for capture in (False, True):
        finetune = Finetune.k_fpf(
            10, steps=6, lr=0.05, distill=distill, batch=8, groups=("block1", "bn.affine", "bn.stats", "fc")
        )
        way = {"capture": capture, "device": "cuda", "deterministic": True}
        found.append(run(SGD(), epochs=3, policy=policy, finetune=finetune, **way))
    called, replayed = found
    assert [(f.step, f.groups) for f in called.finetunings] == [(f.step, f.groups) for f in replayed.finetunings]
    for a, b in zip(called.finetunings, replayed.finetunings, strict=True):
        assert abs(a.first_loss - b.first_loss) < 1e-5
        assert abs(a.last_loss - b.last_loss) < 1e-5
    for a, b in zip(called.network.parameters(), replayed.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@on_gpu
def test_captured_repairs_within_a_budget_equal_called_ones():
    """Short repairs follow about every fourth step, so that the buffer takes many batches after a repair."""
    found = []
    for capture in (False, True):
        method = spied("masked")()
        repairs = Finetune.within(distill=0.2, batch=8)
        way = {"capture": capture, "device": "cuda", "deterministic": True, "epochs": 13, "policy": "distinct"}
        found.append((run(method, finetune=repairs, **way), method.learner))
    (called, one), (replayed, other) = found
    for column in ("x", "y"):
        assert torch.equal(one.buffer[column], other.buffer[column])
    torch.testing.assert_close(one.buffer["logits"], other.buffer["logits"], rtol=1e-3, atol=1e-3)
    for (*_, a), (*_, b) in zip(called.losses, replayed.losses, strict=True):
        assert abs(a - b) < 1e-3
    assert called.flops == replayed.flops


@on_gpu
def test_deterministic_runs_have_the_same_bits():
    weights = [
        torch.cat([p.detach().flatten() for p in run(ER(), device="cuda", deterministic=True).network.parameters()])
        for _ in range(2)
    ]
    assert torch.equal(*weights)


@on_gpu
def test_events_leave_torchs_switches_unchanged():
    before = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.cuda.current_stream())
    for _ in train(
        image_stream(), ER(), networks.resnet18(4, width=4), buffer=24, batch=8, device="cuda", deterministic=True
    ):
        now = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.cuda.current_stream())
        assert now == before


@on_gpu
def test_images_on_the_cpu_train_the_same():
    stream = image_stream(per_task=90)
    here, there = (run(ER(), stream, device="cuda", deterministic=True, resident=r) for r in (True, False))
    for a, b in zip(here.network.parameters(), there.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert here.accuracy_matrix == there.accuracy_matrix


def test_a_run_leaves_the_network_usable(device):
    model = with_seed(lambda: networks.resnet18(4, width=4), 0)
    result = run(ER(), model=copy.deepcopy(model), device=device)
    assert torch.isfinite(result.network(torch.rand(2, 3, 8, 8, device=device))).all()


@on_gpu
def test_an_error_in_a_capture_is_raised_unchanged():
    engine, seen = Engine("cuda"), torch.zeros(1, device="cuda")

    def careless():
        seen.add_(1).item()

    def good():
        seen.add_(1)

    with engine.active():
        engine.call("careless", careless)
        with pytest.raises(RuntimeError, match="captur"):
            engine.call("careless", careless)
        engine = Engine("cuda")
    with engine.active():
        for _ in range(3):
            engine.call("good", good)
        engine.synchronize()
    assert seen.item() == 4
