"""Experience replay: one step against a gradient computed here."""

import copy

import torch
import torch.nn.functional as F

from forgetless.methods.er import ER
from helpers import scaled


def test_er_averages_over_batch_and_replayed_examples(
    make_network, make_batch, make_learner, fill_buffer, assert_sgd_step
):
    model = make_network()
    twin = copy.deepcopy(model)
    learner = make_learner(model, capacity=3)
    x, y = fill_buffer(learner)  # three examples, and three are drawn: all of them
    loss, columns = ER().step(learner, make_batch())
    rows = torch.cat([scaled(make_batch().x), x])
    expected = F.cross_entropy(twin(rows), torch.cat([make_batch().y, y]))
    torch.testing.assert_close(loss, expected.detach())
    assert columns["logits"].shape == (4, 6)
    assert_sgd_step(model, twin, expected)
