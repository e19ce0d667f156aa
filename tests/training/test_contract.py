import time
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import forgetless
from forgetless import METHODS, Method
from forgetless.config import catalogue
from forgetless.methods import setting
from forgetless.training.contract import ContractError


@pytest.mark.parametrize("name", list(METHODS))
def test_every_built_in_method_keeps_the_contract(name):
    make = catalogue.load("method", name)
    forgetless.check(partial(make, memory_epochs=4) if name == "gdumb" else make)


class Good(Method):
    def step(self, learner, batch):
        logits = learner.network(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}


def broken(**parts):
    return type("Broken", (Good,), parts)


@dataclass
class Sharing(Good):
    seen: ClassVar[list] = []

    def step(self, learner, batch):
        self.seen.append(1)
        learner.lr = 0.05 / len(self.seen)
        return super().step(learner, batch)


@dataclass
class Unrepeatable(Good):
    calls: int = field(default=0, init=False)

    def step(self, learner, batch):
        loss, columns = super().step(learner, batch)
        with torch.no_grad():
            learner.parameters[0].add_(1e-9 * (time.perf_counter_ns() % 1_000_003))
        return loss, columns


def reading(self, learner, batch):
    loss, columns = Good.step(self, learner, batch)
    return (loss if loss.item() > 0 else loss + 0), columns


def listing(self, learner, batch):
    loss, columns = Good.step(self, learner, batch)
    return loss + 0 * len(batch.y.tolist()), columns


def masking(self, learner, batch):
    loss, columns = Good.step(self, learner, batch)
    return loss + 0 * batch.x[batch.y > 0].sum(), columns


def undeclared(self, learner, batch):
    loss, columns = Good.step(self, learner, batch)
    return loss, columns | {"secret": batch.y}


def attached(self, learner, batch):
    logits = learner.network(learner.augment(batch.x))
    return logits.mean().detach(), {"logits": logits}


def infinite(self, learner, batch):
    loss, columns = Good.step(self, learner, batch)
    return loss / 0, columns


def moving(self, learner, x):
    with torch.no_grad():
        learner.parameters[0].add_(0.1)
    return learner.network(x)


def lone(self, learner, batch):
    return Good.step(self, learner, batch)[0]


def idle(self, learner, batch):
    return learner.forward(learner.augment(batch.x)).sum().detach(), {}


def test_a_method_or_a_name_that_keeps_it_passes():
    forgetless.check(Good)
    forgetless.check("er")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (broken(step=reading), "4: a step of task 1 makes a GPU-to-CPU sync: aten::_local_scalar_dense"),
        (broken(step=listing), "4: a step of task 1 makes a GPU-to-CPU sync: Tensor.tolist"),
        (broken(step=masking), "4: a step of task 1 makes a GPU-to-CPU sync: a boolean mask as an index"),
        (broken(step=undeclared), "2: the step returns secret, which is not declared"),
        (broken(step=attached), "2: column 'logits' must hold a detached row"),
        (broken(memory="reservoir", columns=("depth",)), "2: the step does not return the declared depth"),
        (broken(memory="balanced", columns=("depth",)), "2: the step does not return the declared depth"),
        (broken(step=lone), "1: Broken.step returns a Tensor; it must return the loss and the columns"),
        (broken(step=idle), r"1: no weight moved in a run: does step\(\) call learner.update"),
        (broken(step=infinite), "1: the loss of a step is inf; it must be a single finite number"),
        (broken(predict=moving), "5: evaluation changes the network"),
        (broken(memory="all"), "memory is 'all'; it must be none, reservoir, balanced or own"),
        (
            broken(alpha=setting(0.1, "weight")),
            r"Broken has settings \(alpha\) but is not a dataclass; put @dataclass above",
        ),
        (Good(), r"Good\(…\) is one method; pass its class or a function that makes methods: check\(Good\)"),
        (Unrepeatable, "3: two runs with the same seed"),
        (Sharing, "6: a second instance|3: two runs"),
    ],
)
def test_each_breach_is_named(make, match):
    with pytest.raises(ContractError, match=match):
        forgetless.check(make)


def test_a_state_that_no_checkpoint_can_hold_warns():
    kind = broken(state_dict=lambda self, learner: {"seen": {1, 2}})
    with pytest.warns(UserWarning, match="no checkpoints: a set cannot be kept in a checkpoint"):
        forgetless.check(kind)
