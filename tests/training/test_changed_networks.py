"""A method may freeze or replace parts of the network when a task ends, and a network may replace its buffers."""

import torch

from forgetless import Finetune
from forgetless.compute.engine import Engine
from forgetless.methods.method import Method
from forgetless.methods.sgd import SGD
from forgetless.repair.tuning import Tuner
from forgetless.training.loop import train
from helpers import small_network, small_stream

STREAM = small_stream(per_class=30)


class Changing(Method):
    """SGD that changes the network after the first task."""

    memory = "reservoir"

    def __init__(self, change):
        self.change = change

    def step(self, learner, batch):
        loss = torch.nn.functional.cross_entropy(learner.forward(learner.augment(batch.x)), batch.y)
        learner.update(loss)
        return loss.detach(), {}

    def end_task(self, learner, task, number):
        if number == 0:
            self.change()
            learner.take_parameters()


def train_changing(network, change):
    """Train with repairs, with a change of the network after the first task."""
    for _ in train(STREAM, Changing(change), network, batch=6, buffer=24, finetune=Finetune.within(2.0, batch=6)):
        pass


def test_graphs_of_repairs_are_discarded_with_each_task(monkeypatch):
    """They hold the tensors of the task, which a method may replace when it ends."""
    discarded = []
    monkeypatch.setattr(Engine, "discard_graphs", lambda self, phase: discarded.append(phase))
    train_changing(small_network(), lambda: None)
    assert discarded.count("finetune") >= len(STREAM.tasks)


def test_layers_that_a_method_freezes_are_no_longer_repaired():
    network, held = small_network(), []

    def freeze():
        network.fc1.requires_grad_(False)
        held.append(network.fc1.weight.detach().clone())

    train_changing(network, freeze)
    assert torch.equal(network.fc1.weight, held[0])


def test_a_layer_that_a_method_replaces_is_put_back_after_a_repair(monkeypatch):
    monkeypatch.setattr("forgetless.repair.tuning.NOISE", -1.0)  # every measured repair is undone
    network, moves = small_network(), []

    def replace():
        network.fc2 = torch.nn.Linear(16, 6)

    def repair_briefly(self, *arguments):
        before = network.fc2.weight.detach().clone()
        done = yield from briefly(self, *arguments)
        if not done.losses:
            moves.append(float((network.fc2.weight - before).abs().max().detach()))
        return done

    briefly = Tuner.repair_briefly
    monkeypatch.setattr(Tuner, "repair_briefly", repair_briefly)
    train_changing(network, replace)
    assert len(moves) > 3
    assert max(moves) == 0


def test_repairs_allow_buffers_of_the_shape_of_the_batch():
    class Remembering(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Flatten(), torch.nn.Linear(4, 6))
            self.register_buffer("last", torch.zeros(1, 6), persistent=False)

        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    stream = small_stream(per_class=13)  # the last batch of a task is smaller
    settings = {"epochs": 20, "batch": 6, "buffer": 24, "finetune": Finetune.within(2.0, batch=6)}
    *_, last = train(stream, SGD(), Remembering(), **settings)
    assert last.result.finetunings
