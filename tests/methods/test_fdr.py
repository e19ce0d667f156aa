"""FDR: its loss and its memory."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless.methods.fdr import FDR
from helpers import scaled


def test_fdr_adds_the_distance_of_the_probabilities(
    make_network, make_batch, make_learner, fill_buffer, assert_sgd_step
):
    model = make_network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    learner = make_learner(model, capacity=3)
    x, _ = fill_buffer(learner, logits=stored, task=torch.zeros(3, dtype=torch.int64))
    loss, _ = FDR(alpha=0.6).step(learner, make_batch(1))
    difference = F.softmax(twin(x), 1) - F.softmax(stored, 1)
    term = (difference**2).sum(1).sqrt().mean()
    expected = F.cross_entropy(twin(scaled(make_batch(1).x)), make_batch(1).y) + 0.6 * term
    torch.testing.assert_close(loss, expected.detach())
    assert_sgd_step(model, twin, expected)


def test_tasks_share_the_memory_equally(stream, make_network, make_learner):
    model = make_network()
    learner = make_learner(model, capacity=12)
    for number, task in enumerate(stream.tasks):
        FDR().end_task(learner, task, number)
        assert learner.buffer["task"].bincount().tolist() == [12 // (number + 1)] * (number + 1)
    torch.testing.assert_close(learner.buffer["logits"], model(scaled(learner.buffer["x"])).detach())
    assert torch.equal(learner.buffer["y"] // 2, learner.buffer["task"])


@pytest.mark.parametrize(("capacity", "sizes"), [(12, [4, 4, 4]), (9, [5, 4]), (5, [5])])
def test_stored_outputs_come_from_training_mode(capacity, sizes, stream, make_learner):
    """With the statistics of each batch, not the running ones, and no batch is left with a single image."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 6))
    model[1].running_mean.fill_(5.0)
    twin = copy.deepcopy(model).train()
    learner = make_learner(model, capacity=capacity)
    FDR().end_task(learner, stream.tasks[0], 0)
    expected = torch.cat([twin(scaled(part)) for part in learner.buffer["x"].split(sizes)])
    torch.testing.assert_close(learner.buffer["logits"], expected.detach())
    assert torch.equal(model[1].running_mean, torch.full((4,), 5.0))  # it is not changed by that
    assert model[1].num_batches_tracked == 0


def test_the_memory_may_be_a_single_image(stream, make_learner):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 6))
    learner = make_learner(model, capacity=1)
    FDR().end_task(learner, stream.tasks[0], 0)
    torch.testing.assert_close(learner.buffer["logits"], model.eval()(scaled(learner.buffer["x"])).detach())
