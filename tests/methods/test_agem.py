"""A-GEM: its projection, its step and its memory."""

import copy

import numpy
import pytest
import torch
import torch.nn.functional as F

from forgetless import networks
from forgetless.methods.agem import AGEM, project
from forgetless.networks.seed import with_seed
from helpers import scaled


def test_only_conflicting_gradients_are_projected():
    # g·r = 1·(−2) + 2·0 = −2, r·r = 4: g + ½ r = (0, 2)
    assert [g.tolist() for g in project([torch.tensor([1.0, 2.0])], [torch.tensor([-2.0, 0.0])])] == [[0.0, 2.0]]
    assert [g.tolist() for g in project([torch.tensor([1.0, 2.0])], [torch.tensor([2.0, 0.0])])] == [[1.0, 2.0]]
    assert [g.tolist() for g in project([torch.tensor([1.0])], [torch.tensor([0.0])])] == [[1.0]]


def test_the_projection_covers_all_parameters_together():
    gradients = [torch.tensor([3.0]), torch.tensor([-1.0])]
    reference = [torch.tensor([1.0]), torch.tensor([4.0])]  # g·r = −1, r·r = 17
    projected = torch.cat(project(gradients, reference))
    torch.testing.assert_close(projected, torch.tensor([3.0 + 1 / 17, -1.0 + 4 / 17]))
    assert torch.dot(projected, torch.cat(reference)).abs() < 1e-6


def test_agem_steps_along_the_projected_gradient(make_network, make_batch, make_learner, fill_buffer):
    model = make_network()
    twin = copy.deepcopy(model)
    learner = make_learner(model, capacity=3)
    x, y = fill_buffer(learner)
    AGEM().step(learner, make_batch(1))
    parameters = list(twin.parameters())
    g = torch.autograd.grad(F.cross_entropy(twin(scaled(make_batch(1).x)), make_batch(1).y), parameters)
    r = torch.autograd.grad(F.cross_entropy(twin(x), y), parameters)
    flat_g, flat_r = (numpy.concatenate([part.numpy().ravel() for part in parts]) for parts in (g, r))
    dot = flat_g @ flat_r
    expected = flat_g - (dot / (flat_r @ flat_r)) * flat_r if dot < 0 else flat_g
    moved = numpy.concatenate([
        ((start - now) / 0.1).detach().numpy().ravel()
        for start, now in zip(parameters, model.parameters(), strict=True)
    ])  # fmt: skip
    numpy.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-5)


def test_a_buffer_too_small_for_all_tasks_is_refused(make_network, make_learner):
    with pytest.raises(ValueError, match="buffer is 2; with 3 tasks agem needs 3 or more"):
        AGEM().begin(make_learner(make_network(), capacity=2))
    batch_norm = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    with pytest.raises(ValueError, match="with 3 tasks agem needs 6 or more.* at least 2 examples per batch"):
        AGEM().begin(make_learner(batch_norm, capacity=5))


def test_the_memory_holds_equal_shares_of_all_tasks(stream, make_network, make_learner):
    learner = make_learner(make_network(), capacity=9)
    for number, task in enumerate(stream.tasks):
        AGEM().end_task(learner, task, number)
        assert len(learner.buffer) == 3 * (number + 1)
    assert (learner.buffer["y"] // 2).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
