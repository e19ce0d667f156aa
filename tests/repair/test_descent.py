import copy
import math

import pytest
import torch
import torch.nn.functional as F
from loops import filled
from torch import nn

from forgetless import Buffer
from forgetless.compute.distributed import ALONE
from forgetless.compute.engine import Engine
from forgetless.repair.descent import Descent, Schedule, sharing, slices
from forgetless.repair.finetuning import Finetuning
from forgetless.repair.objective import Objective
from forgetless.repair.settings import Finetune

RATES = (0.01, 0.02, 0.005, 0.001)


def descend(model, buffer, descent, names=None, schedule=None):
    """Take all steps of a descent with a new generator."""
    names = [name for name, _ in model.named_parameters()] if names is None else names
    run = Finetuning(
        model, buffer, names, descent, Objective(), torch.Generator().manual_seed(0),
        engine=None if schedule is None else Engine(),
    )  # fmt: skip
    if schedule is not None:
        run._use(schedule)
    run.advance(descent.steps)
    return run.finish()


def test_the_papers_descent_is_annealed_by_a_cosine():
    descent = Descent.cosine(Finetune(steps=4, lr=0.2, batch=7, distill=0.5))
    root = math.sqrt(0.5)
    assert descent.multipliers == pytest.approx([0.2, 0.1 * (1 + root), 0.1, 0.1 * (1 - root)])
    assert (descent.steps, descent.batch, descent.distill, descent.optimizer) == (4, 7, 0.5, "sgd")


def test_each_process_draws_its_share_of_a_batch():
    class Second:
        count, rank = 2, 1

        def share(self, total, name):
            return total // 2

    assert sharing(Descent(RATES, batch=9), Second()).batch == 4
    assert sharing(Descent(RATES, batch=9), ALONE).batch == 9


def test_tensors_are_divided_by_their_sizes():
    parts = [(part.start, part.stop) for part in slices([3, 4, 9, 1, 2], most=7)]
    assert parts == [(0, 2), (2, 3), (3, 5)]
    assert list(slices([])) == []


def test_adam_has_the_same_bits_in_parts(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5))
    twin, buffer = copy.deepcopy(model), filled(shape=(3, 2, 2))
    descend(model, buffer, Descent(RATES, batch=64, optimizer="adam"))
    monkeypatch.setattr("forgetless.repair.descent.slices", lambda sizes: slices(sizes, most=90))
    descend(twin, buffer, Descent(RATES, batch=64, optimizer="adam"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("clip", [0.01, 0.5, 100.0])
def test_gradients_are_clipped_as_by_torch(clip):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    twin = copy.deepcopy(model)
    buffer = filled(x=10 * torch.rand(64, 3, 2, 2, dtype=torch.float64))
    descend(model, buffer, Descent(RATES, batch=64, clip=clip))
    optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
    norms = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        F.cross_entropy(twin(buffer["x"]), buffer["y"]).backward()
        norms.append(float(nn.utils.clip_grad_norm_(twin.parameters(), clip)))
        optimizer.step()
    assert (max(norms) > clip) == (clip < 100)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("on_device", [False, True])
def test_adam_takes_the_steps_of_torchs_adam(on_device):
    """Here ε is added before the square root's correction, as in section 2 of Kingma & Ba; torch adds it after."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    twin = copy.deepcopy(model)
    buffer = filled(x=torch.rand(64, 3, 2, 2, dtype=torch.float64))
    schedule = Schedule(len(RATES), torch.device("cpu")) if on_device else None
    descend(model, buffer, Descent(RATES, batch=64, optimizer="adam"), schedule=schedule)
    optimizer = torch.optim.Adam(twin.parameters())
    for step, rate in enumerate(RATES, start=1):
        optimizer.param_groups[0].update(lr=rate, eps=1e-8 / math.sqrt(1 - 0.999**step))
        optimizer.zero_grad()
        F.cross_entropy(twin(buffer["x"]), buffer["y"]).backward()
        optimizer.step()
    tolerance = 1e-6 if on_device else 1e-12  # the rates on the device are in single precision
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=tolerance, atol=tolerance)


def test_adam_takes_sparse_gradients():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(24, 3))
    sparse = copy.deepcopy(dense)
    sparse[0].sparse = True
    buffer = Buffer(8)
    buffer.add({"x": torch.randint(20, (8, 3)), "y": torch.arange(8) % 3})
    for model in (dense, sparse):
        descend(model, buffer, Descent(RATES, batch=4, optimizer="adam"))
    torch.testing.assert_close(sparse[0].weight, dense[0].weight)


class Branches(nn.Module):
    """Uses one of two layers, by the first input, and never the third."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        return self.layers[int(x[0, 0] > 0.5)](x)


def test_adam_follows_parameters_that_some_steps_do_not_use():
    torch.manual_seed(0)
    model = Branches()
    before = copy.deepcopy(model.state_dict())
    buffer = Buffer(32)
    buffer.add({"x": torch.rand(32, 4), "y": torch.arange(32) % 3})
    done = descend(model, buffer, Descent((0.01,) * 12, batch=4, optimizer="adam"))
    assert len(done.losses) == 12
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert moved == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
