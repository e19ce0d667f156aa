import sys
import types

import pytest
import torch
import torch.nn.functional as F

from forgetless import Buffer, finetune
from forgetless.compute import kernels
from forgetless.compute.cross_entropy import cross_entropy
from forgetless.networks import mlp
from helpers import learner, small_stream


def in_one(logits, y):
    """What the kernel gives, by torch."""
    logits = logits.detach().requires_grad_()
    loss = F.cross_entropy(logits, y)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.fixture
def with_kernel(monkeypatch):
    """As on a GPU, with torch in the kernel's place; how often it was called."""
    calls = []
    stand_in = types.ModuleType("forgetless.compute.kernels.cross_entropy")
    stand_in.serves = lambda logits, y: logits.dtype == torch.float32 and y.dtype == torch.int64
    stand_in.cross_entropy = lambda logits, y: calls.append(1) or in_one(logits, y)
    monkeypatch.setitem(sys.modules, "forgetless.compute.kernels.cross_entropy", stand_in)
    monkeypatch.setattr("forgetless.compute.kernels.cross_entropy", stand_in, raising=False)
    monkeypatch.setattr(kernels, "serve", lambda x: True)
    return calls


def test_elsewhere_it_is_torchs_own_and_the_loss_is_where_to_begin():
    logits, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 1])
    loss, root, along = cross_entropy(logits, y)
    assert torch.equal(loss, F.cross_entropy(logits, y))
    assert root is loss
    assert along is None


def test_with_the_kernel_one_begins_at_the_logits(with_kernel):
    inputs, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 1])
    logits = 2 * inputs
    loss, root, along = cross_entropy(logits, y)
    assert root is logits
    (found,) = torch.autograd.grad(root, inputs, along)
    (wanted,) = torch.autograd.grad(F.cross_entropy(2 * inputs, y), inputs)
    torch.testing.assert_close(found, wanted)
    assert not loss.requires_grad
    probabilities = torch.full((4, 3), 1 / 3)
    assert cross_entropy(logits, probabilities)[2] is None  # which the kernel is not for


def a_fit():
    torch.manual_seed(0)
    network = mlp(6, inputs=4)
    network.register_forward_hook(lambda *_: None)  # so that backpropagation is not written out
    loss, _ = learner(network, small_stream(), lr=0.3).fit(torch.rand(5, 1, 2, 2), torch.randint(6, (5,)))
    return [loss, *network.parameters()]


def a_finetuning():
    torch.manual_seed(0)
    network = mlp(6, inputs=4)
    buffer = Buffer(20, seed=0)
    buffer.add({"x": torch.rand(20, 4), "y": torch.randint(6, (20,))})
    done = finetune(network, buffer, ["fc2.weight", "fc3.bias"], steps=5, lr=0.1, batch=8)
    return [torch.tensor(done.losses), *network.parameters()]


@pytest.mark.parametrize("work", [a_fit, a_finetuning])
def test_steps_along_it_are_the_same_with_the_kernel(work, request):
    plain = work()
    calls = request.getfixturevalue("with_kernel")
    for found, wanted in zip(work(), plain, strict=True):
        torch.testing.assert_close(found, wanted)
    assert len(calls) == {a_fit: 1, a_finetuning: 5}[work]
