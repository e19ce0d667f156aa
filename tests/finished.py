"""A small network that has learned old classes, then new ones, and has forgotten the old."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def blobs(count, seed):
    """Return examples of six classes in eight dimensions, around centres that are far apart."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 8, generator=torch.Generator().manual_seed(9))
    y = torch.arange(count) % 6
    return 1.5 * centres[y] + 0.5 * torch.randn(count, 8, generator=generator), y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))


def fit(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        for rows in torch.randperm(len(x), generator=generator).split(10):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def forgetful():
    """Return a network after both trainings, and its weights from between them."""
    x, y = blobs(600, seed=1)
    model = network()
    fit(model, x[y < 3], y[y < 3])
    before = copy.deepcopy(model.state_dict())
    fit(model, x[y >= 3], y[y >= 3])
    return model, before


@torch.no_grad()
def accuracy(model, *, old):
    """Return the accuracy on unseen examples of the old or of the new classes."""
    x, y = blobs(300, seed=2)
    rows = (y < 3) == old
    return (model(x[rows]).argmax(1) == y[rows]).float().mean().item()
