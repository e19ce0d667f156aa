import copy

import pytest
import torch
from torch import nn

from forgetless import METHODS, Finetune, networks, train
from forgetless.compute.engine import Engine, has_bf16
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


def test_with_batch_norm_a_last_batch_of_one_image_is_left_out():
    stream = image_stream(per_task=18)
    mlp = with_seed(lambda: networks.mlp(4, inputs=3 * 8 * 8), 0)
    assert run(SGD(), stream, batch=17).steps == 2 * 2
    assert run(SGD(), stream, mlp, batch=17).steps == 2 * 2 * 2
    sizes = {}
    for name in ("gdumb", "packnet"):  # which train on batches of their own when a task or all of them end
        method = catalogue.load("method", name)()
        method.memory_epochs = method.retrain_epochs = 1
        model = with_seed(lambda: networks.resnet18(4, width=4), 0)
        seen = sizes[name] = set()
        model.register_forward_pre_hook(lambda m, inputs, seen=seen: seen.add(len(inputs[0])) if m.training else None)
        run(method, stream, model, batch=17, buffer=18, capture=False)
    assert sizes == {"gdumb": {17}, "packnet": {17}}


def test_a_run_with_a_remainder_of_one_image_goes_on_from_any_step():
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


def test_on_a_cpu_every_call_is_made():
    engine, calls = Engine(), []
    for _ in range(3):
        engine.call("key", lambda: calls.append(1))
    assert len(calls) == 3
    assert not engine.captures


def test_what_is_kept_is_made_once():
    engine = Engine()
    assert engine.keep("a", list) is engine.keep("a", list)
    assert engine.keep("a", list) is not engine.keep("b", list)


def test_a_run_has_global_random_numbers_of_its_own():
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


def test_dropout_does_not_depend_on_what_was_drawn_before():
    def dropping():
        return with_seed(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 6)), 0)

    weights = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        result = run(SGD(), small_stream(), dropping())
        weights.append(result.network[1].weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("precision", "match"),
    [
        ("fp16", "precision is 'fp16'; it must be one of fp32, tf32, bf16"),
        ("tf32", "precision is 'tf32', which is for GPUs"),
    ],
)
def test_a_precision_the_device_has_not_is_refused(precision, match):
    with pytest.raises(ValueError, match=match):
        train(small_stream(), SGD(), networks.mlp(6, inputs=4), precision=precision)


@pytest.mark.parametrize(
    ("name", "match"), [("gpu", "device is 'gpu'; it must be cpu, cuda"), ("cuda:99", "but torch sees . GPUs here")]
)
def test_a_device_that_is_not_there_is_refused(name, match):
    with pytest.raises(ValueError, match=match):
        train(small_stream(), SGD(), networks.mlp(6, inputs=4), device=name)


def test_bf16_without_instructions_is_refused(monkeypatch):
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: False)
    with pytest.raises(ValueError, match="this CPU has no instructions for it; use fp32"):
        Engine(precision="bf16")


@pytest.mark.parametrize(
    ("machine", "instructions", "found"),
    [
        ("x86_64", (), False),  # where oneDNN says that it computes in bf16
        ("x86_64", ("_is_amx_tile_supported",), True),
        ("AMD64", ("_is_avx512_bf16_supported",), True),
        ("aarch64", (), True),
    ],
)
def test_the_instructions_for_bf16_are_looked_for(machine, instructions, found, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: True)
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in instructions, raising=False)
    assert has_bf16() is found


COMPUTES_BF16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN does not compute in bf16 on this CPU"
)


@COMPUTES_BF16
def test_bf16_is_near_fp32_and_leaves_weights_in_fp32(monkeypatch):
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: True)  # where it is slow too
    torch.manual_seed(0)
    network, x = networks.mlp(6, inputs=40), torch.rand(8, 40)
    logits = Engine(precision="bf16").forward(network, x)
    exact = network(x)
    assert logits.dtype == torch.float32
    assert 1e-4 < ((logits - exact).norm() / exact.norm()).detach() < 1e-2
    gradients = torch.autograd.grad(logits.square().sum(), list(network.parameters()))
    expected = torch.autograd.grad(exact.square().sum(), list(network.parameters()))
    for found, wanted in zip(gradients, expected, strict=True):
        assert found.dtype == torch.float32
        assert (found - wanted).norm() / wanted.norm() < 2e-2


@COMPUTES_BF16
def test_frozen_weights_take_no_gradients_in_bf16(device, monkeypatch):
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: True)
    network = networks.mlp(6, inputs=40).to(device)
    network.fc2.requires_grad_(False)
    learned = [p for p in network.parameters() if p.requires_grad]
    loss = Engine(device, precision="bf16").forward(network, torch.rand(8, 40, device=device)).sum()
    assert all(bool(g.abs().sum()) for g in torch.autograd.grad(loss, learned))


def test_a_perceptron_that_was_changed_is_called_as_it_is():
    class Scaled(networks.MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    torch.manual_seed(0)
    scaled, hooked, plain = Scaled((4, 8, 6), xavier=True), networks.mlp(6, inputs=4), networks.mlp(6, inputs=4)
    seen = []
    hooked.fc1.register_forward_hook(lambda *_: seen.append(1))
    x = torch.rand(3, 4)
    assert torch.equal(Engine().forward(scaled, x), scaled(x))
    Engine().forward(hooked, x)
    assert seen
    assert plain.plain
    assert not scaled.plain
    assert not hooked.plain


@on_gpu
@pytest.mark.parametrize("name", list(METHODS))
def test_captured_is_what_is_called(name):
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
def test_what_is_captured_of_a_compiled_network_is_what_was_compiled():
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
def test_captured_finetuning_is_what_is_called(distill, policy):
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
def test_in_deterministic_mode_two_runs_are_the_same_bits():
    weights = [
        torch.cat([p.detach().flatten() for p in run(ER(), device="cuda", deterministic=True).network.parameters()])
        for _ in range(2)
    ]
    assert torch.equal(*weights)


@on_gpu
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("tf32", 5e-3), ("bf16", 5e-2)])
def test_a_precision_rounds_as_it_should(precision, error):
    torch.manual_seed(0)
    network = networks.resnet18(4, width=16).cuda().to(memory_format=torch.channels_last).eval()
    exact = copy.deepcopy(network).double()
    x = torch.rand(16, 3, 16, 16, device="cuda")
    engine = Engine("cuda", precision=precision)
    with engine.active(), torch.no_grad():
        found = engine.forward(network, x)
    torch.cuda.synchronize()
    wanted = exact(x.double())
    assert error / 500 < (found - wanted).norm() / wanted.norm() < error


@pytest.mark.parametrize(
    ("machine", "network", "precision", "used"),
    [
        ("aarch64", networks.mlp, "fp32", False),
        ("arm64", networks.mlp, "fp32", False),
        ("x86_64", networks.mlp, "fp32", True),
        ("aarch64", networks.resnet18, "fp32", True),
        ("aarch64", networks.mlp, "bf16", True),
    ],
)
def test_on_arm_a_perceptron_is_computed_without_onednn(machine, network, precision, used, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("forgetless.compute.engine.check_precision", lambda *_: None)
    engine = Engine(precision=precision)
    engine.suit(network(2))
    with engine.active():
        assert torch.backends.mkldnn.enabled == used
    assert torch.backends.mkldnn.enabled


@on_gpu
def test_torchs_switches_are_as_they_were_between_events():
    before = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.cuda.current_stream())
    for _ in train(
        image_stream(), ER(), networks.resnet18(4, width=4), buffer=24, batch=8, device="cuda", deterministic=True
    ):
        now = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.cuda.current_stream())
        assert now == before


@on_gpu
def test_images_that_stay_on_the_host_give_the_same_run():
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
def test_an_error_in_a_capture_is_the_one_that_is_raised_and_later_captures_work():
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
