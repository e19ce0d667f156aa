"""A loop on two small tasks, as users write it."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from forgetless import FPF, Buffer, networks
from helpers import CNN, Transformer

MODES = [{"steps": 5}, {}]  # a short repair on the paper's schedule, and one within the default budget
MODE_NAMES = ["schedule", "budget"]


def shifting(shape, classes=4, steps=60, batch=16, seed=0, device="cpu"):
    """Yield batches of two tasks of two classes each: a fixed pattern per class, and noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, *shape, generator=generator)
    for step in range(2 * steps):
        y = torch.randint(2, (batch,), generator=generator) + 2 * (step // steps)
        x = patterns[y] + 0.3 * torch.randn(batch, *shape, generator=generator)
        yield x.to(device), y.to(device)


def accuracy(model, shape, device="cpu"):
    """Return the accuracy on both tasks."""
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float() for x, y in shifting(shape, steps=5, batch=100, device=device)]
    model.train()
    return torch.cat(right).mean().item()


def run(model, shape, fpf=None, optimizer=None, device="cpu", autocast=None, announced=False):
    """Train on both tasks, and finish; with ``announced``, ``boundary()`` says where they begin."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(shifting(shape, device=device)):
        if announced and fpf and step % 60 == 0:
            fpf.boundary()
        with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fpf:
            fpf.observe(x, y, logits)
    return fpf.finish() if fpf else None


def make(kind):
    """Return a network with random weights, and the shape of its inputs."""
    torch.manual_seed(0)
    return {"cnn": (CNN(), (3, 8, 8)), "transformer": (Transformer(2), (4, 8)), "mlp": (networks.mlp(10, 16), (16,))}[
        kind
    ]


def in_two_tasks(model, fpf, between=lambda: None):
    """Train on both tasks with a boundary and ``between()`` between them; do not finish."""
    for step, (x, y) in enumerate(shifting((16,))):
        if step == 60:
            fpf.boundary()
            between()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        optimizer.zero_grad()
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        fpf.observe(x, y, logits)


def normalised(affine=True):
    """Return a network with two batch-norm layers."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12, affine=affine), nn.ReLU())
    neck = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, neck=neck, head=nn.Linear(12, 4)))


def repaired(model, **settings):
    """Train a network for some steps and return its FPF, which finetunes all groups."""
    torch.manual_seed(0)
    fpf = FPF(model, capacity=20, groups="all", **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x, y = torch.rand(10, 8), torch.randint(3, (10,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)
    return fpf


def filled(x=None, y=None, logits=None, classes=5, shape=(3, 8, 8), device="cpu"):
    """Return a full buffer of random examples."""
    generator = torch.Generator().manual_seed(0)
    buffer = Buffer(64)
    x = torch.rand(64, *shape, generator=generator).to(device) if x is None else x
    y = torch.randint(classes, (len(x),), generator=generator).to(device) if y is None else y
    buffer.add({"x": x, "y": y} | ({} if logits is None else {"logits": logits}))
    return buffer


def state(model):
    """Return a copy of all tensors."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(before, model):
    """Return the names of the tensors that differ from ``before``."""
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
