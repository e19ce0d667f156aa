"""A repair leaves ``requires_grad`` and ``.grad`` alone, and differentiates only for what it moves."""

import pytest
import torch
import torch.nn.functional as F
from loops import filled
from torch import nn
from torch.utils.checkpoint import checkpoint

import forgetless
from forgetless import FPF, finetune, networks, only
from forgetless.repair.gradients import Gradients


class Checkpointed(nn.Module):
    """Two blocks, the second one with activation checkpointing."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self._reentrant = reentrant

    def forward(self, x):
        x = self.first(x).relu()
        if self._reentrant is not None:
            return self.head(checkpoint(self.second, x, use_reentrant=self._reentrant).relu())
        return self.head(self.second(x).relu())


def test_flags_never_flip_during_a_repair():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model[2].bias.requires_grad_(False)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    seen = []
    model.register_forward_hook(lambda *_: seen.append([p.requires_grad for p in model.parameters()]))
    fpf = FPF(model, capacity=64, budget=2, groups=["head"])
    for _ in range(100):
        fpf.observe(torch.rand(16, 4), torch.randint(2, (16,)))
    fpf.finish()
    assert fpf.finetunings > 1
    assert len(seen) > 100
    assert all(found == flags for found in seen)


def test_accumulated_gradients_survive_a_repair():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fpf = FPF(model, capacity=64, every=1, steps=3, groups="all")
    model(torch.rand(16, 4)).sum().backward()
    held = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in held]
    for _ in range(3):
        fpf.observe(torch.rand(16, 4), torch.randint(2, (16,)))
    assert fpf.finetunings == 2
    for parameter, gradient, value in zip(model.parameters(), held, values, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)


def test_a_finetuning_has_the_bits_of_one_with_frozen_flags():
    def network():
        torch.manual_seed(0)
        return networks.resnet18(5, width=4)

    model, other = network(), network()
    names = [name for group in ("block2", "bn.affine", "bn.stats") for name in forgetless.groups(model)[group]]
    buffer = filled()
    done = finetune(model, buffer, names, steps=3, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    torch.randint(2**31, (), generator=generator)  # the seed of augmentation and dropout
    losses = []
    with only(other, names) as parameters:
        for rate in (0.1, 0.075, 0.025):
            rows = buffer.draw(32, generator)
            loss = F.cross_entropy(other(rows["x"]), rows["y"])
            loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(parameter.grad, alpha=-rate)
                    parameter.grad = None
            losses.append(loss.item())
    assert list(done.losses) == losses
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_only_the_chosen_gradients_are_computed():
    model = Checkpointed(None)
    computed = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: computed.append(name))
    finetune(model, filled(x=torch.rand(64, 4)), ["second.bias"], steps=2)
    assert computed == ["second.bias"] * 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_no_bit(reentrant):
    plain, checkpointed = Checkpointed(None), Checkpointed(reentrant)
    x = torch.rand(64, 4)
    gradients = [torch.rand_like(parameter) for parameter in checkpointed.parameters()]
    for parameter, gradient in zip(checkpointed.parameters(), gradients, strict=True):
        parameter.grad = gradient
    for model in (plain, checkpointed):
        finetune(model, filled(x=x), ["first.weight", "second.bias"], steps=4)
    for wanted, found in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(wanted, found)
    assert all(p.grad is g for p, g in zip(checkpointed.parameters(), gradients, strict=True))


def test_an_unused_parameter_has_no_gradient():
    model = Checkpointed(None)
    value = model.first(torch.rand(2, 4)).sum()
    gradients = Gradients(model).differentiate(value, [model.head.bias, model.first.bias])
    assert gradients[0] is None
    assert gradients[1].tolist() == [2] * 8
