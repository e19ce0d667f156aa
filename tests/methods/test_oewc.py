"""oEWC: Fisher information and penalty."""

import copy

import numpy
import torch
import torch.nn.functional as F

from forgetless.data.stream import Split, Task
from forgetless.methods.oewc import OnlineEWC, fisher_information
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.training.events import TaskEnded
from forgetless.training.loop import train
from helpers import scaled, small_stream


def test_fisher_information_equals_a_loop_over_examples(stream, make_network, make_learner):
    model = make_network()
    learner = make_learner(model)
    total = [numpy.zeros(tuple(p.shape)) for p in model.parameters()]
    for x, y in zip(stream.tasks[0].train.x, stream.tasks[0].train.y, strict=True):
        log_p = F.log_softmax(model(scaled(x)[None]), 1)[0, y]
        for sum_, gradient in zip(total, torch.autograd.grad(log_p, list(model.parameters())), strict=True):
            sum_ += log_p.exp().item() * gradient.numpy() ** 2
    for fisher, expected in zip(
        fisher_information(learner, stream.tasks[0], len(stream.tasks[0].train)), total, strict=True
    ):
        torch.testing.assert_close(fisher, torch.tensor(expected / 24, dtype=torch.float32), rtol=1e-3, atol=1e-7)


def test_limited_examples_are_spread_over_the_task(stream, make_network, make_learner):
    method = OnlineEWC(fisher_examples=6)
    learner, split = make_learner(make_network(), method=method), stream.tasks[0].train
    few = Split(split.x[::4].contiguous(), split.y[::4].contiguous())
    expected = fisher_information(learner, Task(few, few, (0, 1)), 6)
    method.end_task(learner, stream.tasks[0], 0)
    for fisher, value in zip(method.fisher, expected, strict=True):
        torch.testing.assert_close(fisher, value)


def test_oewc_penalises_the_squared_distance_without_a_half(
    stream, make_network, make_batch, make_learner, assert_sgd_step
):
    model = make_network()
    method = OnlineEWC(penalty=3.0, gamma=0.5)
    learner = make_learner(model, method=method)
    method.end_task(learner, stream.tasks[0], 0)
    first = [value.clone() for value in method.fisher]
    anchor = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    twin = copy.deepcopy(model)
    loss, _ = method.step(learner, make_batch(1))
    expected = F.cross_entropy(twin(scaled(make_batch(1).x)), make_batch(1).y)
    for p, fisher, star in zip(twin.parameters(), first, anchor, strict=True):
        expected = expected + 3.0 * (fisher * (p - star) ** 2).sum()
    torch.testing.assert_close(loss, expected.detach())
    assert_sgd_step(model, twin, expected)
    fresh = fisher_information(learner, stream.tasks[1], len(stream.tasks[1].train))
    method.end_task(learner, stream.tasks[1], 1)
    for now, before, new in zip(method.fisher, first, fresh, strict=True):
        torch.testing.assert_close(now, 0.5 * before + new)


def test_frozen_groups_gain_no_importance():
    stream = small_stream(per_class=12)
    network = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
    method = OnlineEWC(penalty=1.0)
    run = train(stream, method, network, epochs=1, batch=6, lr=0.1, freeze=["fc1"])
    first = next([value.clone() for value in method.fisher] for event in run if isinstance(event, TaskEnded))
    for _ in run:
        pass
    gained = [bool((now > before).any()) for now, before in zip(method.fisher, first, strict=True)]
    assert gained == [False, False, True, True]  # weight and bias of fc1 and fc2
