"""Two small tasks, and a plain training loop over them to compare the integrations with."""

import importlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from forgetless import FPF, networks

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(__file__).parents[1] / "programs"
SETTINGS = {"capacity": 40, "every": 7, "steps": 5, "window": 3, "lr": 0.1}
BUDGET = {"capacity": 20, "budget": 10.0, "batch": 8}
TASKS = 2


def import_example(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 6, generator=generator)
    return x, torch.arange(60) % 2 + 2 * (torch.arange(60) // 30)  # 30 examples of classes 0 and 1, then of 2 and 3


def network():
    torch.manual_seed(3)
    return networks.mlp(4, inputs=6, hidden=(8,))


def by_hand(orders, common=SETTINGS, **settings):
    """Return the weights after a plain loop over batches of these rows, one list per task."""
    model = network()
    fpf = FPF(model, **{**common, **settings})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data()
    for number, order in enumerate(orders):
        if number:
            fpf.boundary()
        for rows in order:
            logits = model(x[rows])
            optimizer.zero_grad()
            F.cross_entropy(logits, y[rows]).backward()
            optimizer.step()
            fpf.observe(x[rows], y[rows], logits)
    assert fpf.finetunings
    fpf.finish()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def in_turn(epochs=1, size=5):
    """Return the rows of both tasks in order, in batches."""
    return [list(torch.arange(30).add(30 * task).split(size)) * epochs for task in range(TASKS)]
