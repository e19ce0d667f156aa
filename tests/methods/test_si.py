"""SI: path integral, importance and penalty."""

import copy

import numpy
import pytest
import torch
import torch.nn.functional as F

from forgetless.methods.si import SI
from helpers import all_equal, scaled, weights_of


def test_two_tasks_equal_a_run_in_numpy(stream, make_network, make_batch, make_learner):
    model = make_network()
    twin = copy.deepcopy(model)
    method = SI(c=0.7, xi=0.02)
    learner = make_learner(model, method=method, lr=0.2)
    omega = [numpy.zeros(tuple(p.shape)) for p in twin.parameters()]
    big = [numpy.zeros(tuple(p.shape)) for p in twin.parameters()]
    star = [p.detach().numpy().astype(float) for p in twin.parameters()]
    penalties = []
    for task in (0, 1):
        for step in range(4):
            now = make_batch(task, start=4 * step)
            entropy = F.cross_entropy(twin(scaled(now.x)), now.y)
            places = list(twin.parameters())
            g = [v.numpy().astype(float) for v in torch.autograd.grad(entropy, places)]
            theta = [p.detach().numpy().astype(float) for p in places]
            penalty = 0.7 * sum((b * (t - s) ** 2).sum() for b, t, s in zip(big, theta, star, strict=True))
            penalties.append(penalty)
            loss, _ = method.step(learner, now)
            assert float(loss) == pytest.approx(float(entropy.detach()) + penalty, rel=1e-4)
            for i, p in enumerate(places):
                move = -0.2 * (g[i] + 2 * 0.7 * big[i] * (theta[i] - star[i]))
                omega[i] += -g[i] * move
                p.data += torch.tensor(move, dtype=torch.float32)
        for path, expected in zip(method.path, omega, strict=True):
            numpy.testing.assert_allclose(path.numpy(), expected, rtol=1e-3, atol=1e-6)
        for i, p in enumerate(twin.parameters()):
            end = p.detach().numpy().astype(float)
            big[i] += numpy.maximum(0, omega[i] / ((end - star[i]) ** 2 + 0.02))
            star[i], omega[i] = end, numpy.zeros_like(omega[i])
        method.end_task(learner, stream.tasks[task], task)
        for found, expected in zip(method.importance, big, strict=True):
            numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-5)
        assert all_equal(method.anchor, weights_of(model))
        assert not any(bool(path.any()) for path in method.path)
    assert penalties[:5] == [0.0] * 5  # of the first task, and where the second begins
    assert min(penalties[5:]) > 1e-4
    assert max(float(one.max()) for one in method.importance) > 1e-2


def test_negative_contributions_are_clipped_at_zero(stream, make_network, make_learner):
    model = make_network()
    method = SI(xi=0.5)
    learner = make_learner(model, method=method)
    method.path[0][0, :2] = torch.tensor([3.0, -3.0])
    with torch.no_grad():
        model.fc1.weight[0, :2] += 1.0
    method.end_task(learner, stream.tasks[0], 0)
    torch.testing.assert_close(method.importance[0][0], torch.tensor([2.0, 0.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="xi is 0.0; it must be a finite number above 0"):
        SI(xi=0.0)
