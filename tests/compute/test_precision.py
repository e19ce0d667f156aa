import copy

import pytest
import torch

from forgetless import networks, train
from forgetless.compute.engine import Engine
from forgetless.compute.precision import has_bf16
from forgetless.methods.sgd import SGD
from helpers import on_gpu, small_stream


@pytest.mark.parametrize(
    ("precision", "match"),
    [
        ("fp16", "precision is 'fp16'; it must be one of fp32, tf32, bf16"),
        ("tf32", "precision is 'tf32', which needs a GPU"),
    ],
)
def test_an_unsupported_precision_is_refused(precision, match):
    with pytest.raises(ValueError, match=match):
        train(small_stream(), SGD(), networks.mlp(6, inputs=4), precision=precision)


def test_bf16_without_instructions_is_refused(monkeypatch):
    monkeypatch.setattr("forgetless.compute.precision.has_bf16", lambda: False)
    with pytest.raises(ValueError, match="this CPU has no instructions for it; use fp32"):
        Engine(precision="bf16")


@pytest.mark.parametrize(
    ("machine", "instructions", "found"),
    [
        ("x86_64", (), False),  # although oneDNN claims to compute in bf16
        ("x86_64", ("_is_amx_tile_supported",), True),
        ("AMD64", ("_is_avx512_bf16_supported",), True),
        ("aarch64", (), True),
    ],
)
def test_bf16_instructions_are_detected(machine, instructions, found, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: True)
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in instructions, raising=False)
    assert has_bf16() is found


COMPUTES_BF16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN does not compute in bf16 on this CPU"
)


@COMPUTES_BF16
def test_bf16_is_near_fp32(monkeypatch):
    monkeypatch.setattr("forgetless.compute.precision.has_bf16", lambda: True)  # slow, but computed
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
    monkeypatch.setattr("forgetless.compute.precision.has_bf16", lambda: True)
    network = networks.mlp(6, inputs=40).to(device)
    network.fc2.requires_grad_(False)
    learned = [p for p in network.parameters() if p.requires_grad]
    loss = Engine(device, precision="bf16").forward(network, torch.rand(8, 40, device=device)).sum()
    assert all(bool(g.abs().sum()) for g in torch.autograd.grad(loss, learned))


@on_gpu
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("tf32", 5e-3), ("bf16", 5e-2)])
def test_each_precision_rounds_as_expected(precision, error):
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
    ("machine", "small_products", "precision", "used"),
    [
        ("aarch64", True, "fp32", False),
        ("arm64", True, "fp32", False),
        ("x86_64", True, "fp32", True),
        ("aarch64", False, "fp32", True),
        ("aarch64", True, "bf16", True),
    ],
)
def test_arm_computes_small_products_without_onednn(machine, small_products, precision, used, monkeypatch, onednn_on):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("forgetless.compute.engine.check_precision", lambda *_: None)
    engine = Engine(precision=precision)
    engine.adapt(compiled=False, small_products=small_products)
    with engine.active():
        assert torch.backends.mkldnn.enabled == used
    assert torch.backends.mkldnn.enabled
