import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import networks
from forgetless.compute import kernels
from forgetless.compute.descent import descend
from forgetless.compute.engine import Engine, _by_name_alone
from forgetless.methods.learner import Learner
from forgetless.repair.buffer import Buffer
from forgetless.repair.finetune import Finetuning
from helpers import small_stream


def test_a_step_by_hand():
    weight, bias = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
    descend([weight, bias], [torch.tensor([[10.0, -20.0]]), torch.tensor([1.0])], 0.5)
    assert weight.tolist() == [[-4.0, 12.0]]
    assert bias.tolist() == [2.5]
    descend([bias], [torch.tensor([2.0])])
    assert bias.tolist() == [0.5]
    descend([], [])


def test_without_the_kernel_gradients_in_bf16_are_taken_too():
    weight = torch.ones(3, requires_grad=True)
    descend([weight], [torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)], 0.25)
    assert weight.tolist() == [0.75, 0.5, 0.0]


@pytest.fixture
def with_kernels(monkeypatch):
    """As on a GPU, with torch in the kernels' place; how many gradients each call had."""
    calls = []

    def descend_all(parameters, gradients, rate):
        calls.append(len(parameters))
        for p, g in zip(parameters, gradients, strict=True):
            assert (p.dtype, g.dtype) == (torch.float32, torch.bfloat16)
            p.sub_(rate * g.float())

    def cross_entropy(logits, y):
        loss = F.cross_entropy(logits, y)
        return loss.detach(), torch.autograd.grad(loss, logits, retain_graph=True)[0]

    stand_ins = {
        "descent_cuda": {"descend": descend_all},
        "cross_entropy_cuda": {"serves": lambda logits, y: True, "cross_entropy": cross_entropy},
    }
    for name, functions in stand_ins.items():
        module = types.ModuleType(f"forgetless.{name}")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(module.__name__, module, raising=False)
    monkeypatch.setattr(kernels, "serve", lambda x: True)
    return calls


def a_learner(weight_decay=0.0):
    torch.manual_seed(0)
    network = networks.mlp(4, inputs=6)
    return Learner(
        network, small_stream(), lr=0.1, batch=4, replay=3, weight_decay=weight_decay, buffer=None,
        engine=Engine(precision="bf16"), seed=0,
    )  # fmt: skip


def weights_after(work):
    torch.manual_seed(1)
    learner = work(torch.rand(8, 6), torch.randint(4, (8,)))
    return list(learner.network.parameters())


def fit(x, y):
    learner = a_learner()
    for _ in range(3):
        learner.fit(x, y)
    return learner


def fit_with_weight_decay(x, y):
    learner = a_learner(weight_decay=0.1)
    learner.fit(x, y)
    return learner


def a_finetuning(x, y):
    learner = a_learner()
    buffer = Buffer(8, seed=0)
    buffer.add({"x": x, "y": y})
    run = Finetuning(
        learner.network, buffer, ["fc1.weight", "fc3.weight", "fc3.bias"], 3, 0.1, 0.0, batch=8, augment=None,
        forward=learner.engine.forward, generator=None, engine=learner.engine,
    )  # fmt: skip
    run.advance(3)
    run.finish()
    return learner


@pytest.mark.parametrize(("work", "taken"), [(fit, [3, 3, 3]), (fit_with_weight_decay, []), (a_finetuning, [2, 2, 2])])
def test_steps_are_the_same_with_gradients_that_are_not_cast(work, taken, monkeypatch, request):
    """The three matrices of an MLP, of which two are finetuned."""
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: True)
    plain = weights_after(work)
    calls = request.getfixturevalue("with_kernels")
    for found, wanted in zip(weights_after(work), plain, strict=True):
        torch.testing.assert_close(found, wanted)
    assert calls == taken


def test_copies_are_only_for_the_output_that_forward_gave_last(with_kernels, monkeypatch):
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: True)
    learner = a_learner()
    engine, parameters = learner.engine, learner.parameters
    first, second = learner.forward(torch.rand(2, 6)), learner.forward(torch.rand(2, 6))
    dtypes = [source.dtype for source in engine.sources(second, parameters)]
    assert dtypes == [torch.bfloat16, torch.float32] * 3
    for other in (first, second.sum(), second.detach()):
        assert all(a is b for a, b in zip(engine.sources(other, parameters), parameters, strict=True))
    kept = []
    engine.call("step", lambda: kept.append(learner.forward(torch.rand(2, 6))))
    assert engine.sources(kept[0], parameters)[0] is parameters[0]  # a step keeps no copies beyond its end
    odd = nn.Linear(6, 4)
    odd.weight = nn.Parameter(torch.rand(4, 12)[:, ::2])  # with gaps in memory, which a copy has not
    assert engine.sources(engine.forward(odd, torch.rand(2, 6)), [odd.weight])[0] is odd.weight


class Twice(nn.Linear):
    """Uses its weight under another name too."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.also = [self.weight]

    def forward(self, x):
        return super().forward(x) + F.linear(x, self.also[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda network: setattr(network, "fc1", Twice(6, 100)),
        lambda network: network.fc1.weight.register_hook(torch.zeros_like),
        lambda network: network.fc2.register_full_backward_hook(lambda module, back, forth: None),
        lambda network: setattr(
            network, "forward", lambda x: type(network).forward(network, x) + network.fc1.weight.sum()
        ),
    ],
)
def test_what_a_user_has_changed_gets_the_gradients_of_its_parameters(change, with_kernels, monkeypatch):
    """As by autograd with respect to them."""
    monkeypatch.setattr("forgetless.compute.engine.has_bf16", lambda: True)
    learner = a_learner()
    change(learner.network)
    learner.take_parameters()
    x, y = torch.rand(8, 6), torch.randint(4, (8,))
    gradients = learner.gradients(F.cross_entropy(learner.forward(x), y))
    wanted = [p - 0.1 * g for p, g in zip(learner.parameters, gradients, strict=True)]
    learner.fit(x, y)
    for found, expected in zip(learner.parameters, wanted, strict=True):
        torch.testing.assert_close(found, expected)
    assert with_kernels == []


def test_the_networks_here_use_their_parameters_by_name_alone():
    for network in (networks.mlp(4), networks.resnet18(4, width=4), networks.resnet18_imagenet(4), networks.vgg11(4)):
        assert _by_name_alone(network)
