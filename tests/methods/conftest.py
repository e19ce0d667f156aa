"""A small stream, and functions that make networks, learners and batches for it."""

import pytest
import torch
from torch import nn

from forgetless.data.benchmarks import seq_digits
from forgetless.methods.learner import Batch
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.training.loop import train
from helpers import learner, small_stream


@pytest.fixture
def stream():
    """Three tasks of two classes, 24 training images of 2×2 pixels each."""
    return small_stream()


@pytest.fixture
def make_network():
    def make(seed=0, hidden=(5,)):
        return with_seed(lambda: mlp(6, inputs=4, hidden=hidden), seed)

    return make


@pytest.fixture
def make_batch(stream):
    def make(task=0, size=4, start=0):
        split = stream.tasks[task].train
        return Batch(split.x[start : start + size], split.y[start : start + size], task)

    return make


@pytest.fixture
def make_learner(stream):
    """Return a function that makes a learner; with ``method``, that method has begun."""

    def make(network, of_stream=None, *, method=None, **settings):
        made = learner(network, of_stream or stream, **settings)
        if method is not None:
            method.begin(made)
        return made

    return make


@pytest.fixture
def fill_buffer(stream):
    """Return a function that stores three examples and returns their inputs and labels."""

    def fill(learner, **columns):
        split = stream.tasks[0].train
        learner.buffer.add({"x": split.x[5:8], "y": split.y[5:8], **columns})
        return split.x[5:8].float() / 255, split.y[5:8]

    return fill


@pytest.fixture
def train_task(stream, make_batch):
    """Return a function that takes some steps on a task and ends it."""

    def train(method, learner, task, steps=6):
        for step in range(steps):
            method.step(learner, make_batch(task, start=4 * step))
        method.end_task(learner, stream.tasks[task], task)

    return train


@pytest.fixture
def assert_sgd_step():
    """Return a function that asserts that ``model`` is ``start`` after one step of SGD along ``loss``."""

    def check(model, start, loss, lr=0.1):
        gradients = torch.autograd.grad(loss, list(start.parameters()))
        for moved, before, gradient in zip(model.parameters(), start.parameters(), gradients, strict=True):
            torch.testing.assert_close(moved.detach(), before.detach() - lr * gradient, rtol=1e-4, atol=1e-6)

    return check


class Normed(nn.Module):
    """A convolution with batch norm, and an output layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 6)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().flatten(1))


@pytest.fixture
def normed():
    return with_seed(Normed, 0)


@pytest.fixture
def train_digits():
    """Return a function that trains a method on the digits and returns the result."""

    def run(method, epochs=5, lr=0.1, seed=1, **settings):
        given = {"epochs": epochs, "batch": 10, "lr": lr, "buffer": 200, "seed": seed, **settings}
        *_, last = train(seq_digits(), method, with_seed(lambda: mlp(10, inputs=64), seed), **given)
        return last.result

    return run
