"""MAS: importance and penalty."""

import copy

import pytest
import torch
import torch.nn.functional as F

from forgetless.data.stream import Split, Task
from forgetless.methods.mas import MAS, output_importance
from helpers import scaled, weights_of


def test_importance_equals_a_loop_over_examples(stream, make_network, make_learner):
    model = make_network(hidden=(5, 4))
    learner = make_learner(model)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x in stream.tasks[0].train.x:
        norm = (model(scaled(x)[None]) ** 2).sum()
        for sum_, gradient in zip(total, torch.autograd.grad(norm, list(model.parameters())), strict=True):
            sum_ += gradient.abs()
    for found, expected in zip(output_importance(learner, stream.tasks[0], 0), total, strict=True):
        torch.testing.assert_close(found, expected.detach() / 24, rtol=1e-4, atol=1e-6)


def test_limited_examples_are_spread_over_the_task(stream, make_network, make_learner):
    learner, split = make_learner(make_network()), stream.tasks[0].train
    few = Split(split.x[::4].contiguous(), split.y[::4].contiguous())
    expected = output_importance(learner, Task(few, few, (0, 1)), 0)
    method = MAS(examples=6)
    method.begin(learner)
    method.end_task(learner, stream.tasks[0], 0)
    for found, value in zip(method.importance, expected, strict=True):
        torch.testing.assert_close(found, value)


def test_the_penalty_sums_importance_over_tasks(stream, make_network, make_batch, make_learner, assert_sgd_step):
    model = make_network()
    method = MAS(penalty=0.3)
    learner = make_learner(model, method=method)
    entropy = F.cross_entropy(model(scaled(make_batch().x)), make_batch().y)
    assert float(method.step(learner, make_batch())[0]) == pytest.approx(
        float(entropy.detach())
    )  # nothing is important yet
    first = output_importance(learner, stream.tasks[0], 0)
    method.end_task(learner, stream.tasks[0], 0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    second = output_importance(learner, stream.tasks[1], 0)
    method.end_task(learner, stream.tasks[1], 1)
    star = weights_of(model)
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.2)
    twin = copy.deepcopy(model)
    loss, _ = method.step(learner, make_batch(2))
    expected = F.cross_entropy(twin(scaled(make_batch(2).x)), make_batch(2).y)
    for p, one, two, place in zip(twin.parameters(), first, second, star, strict=True):
        expected = expected + 0.3 * ((one + two) * (p - place) ** 2).sum()
    torch.testing.assert_close(loss, expected.detach())
    assert_sgd_step(model, twin, expected, lr=0.1)
