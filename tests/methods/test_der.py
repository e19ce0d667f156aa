"""DER and DER++: one step against a gradient computed here."""

import copy

import torch
import torch.nn.functional as F

from forgetless.methods.der import DER
from forgetless.methods.derpp import DERpp
from helpers import scaled


def test_der_adds_the_distance_to_the_stored_logits(
    make_network, make_batch, make_learner, fill_buffer, assert_sgd_step
):
    model = make_network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    learner = make_learner(model, capacity=3)
    x, _ = fill_buffer(learner, logits=stored)
    loss, _ = DER(alpha=0.7).step(learner, make_batch())
    expected = F.cross_entropy(twin(scaled(make_batch().x)), make_batch().y) + 0.7 * ((twin(x) - stored) ** 2).mean()
    torch.testing.assert_close(loss, expected.detach())
    assert_sgd_step(model, twin, expected)


def test_derpp_adds_the_loss_on_stored_labels(make_network, make_batch, make_learner, fill_buffer, assert_sgd_step):
    model = make_network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    learner = make_learner(model, capacity=3)
    x, y = fill_buffer(learner, logits=stored)
    loss, _ = DERpp(alpha=0.7, beta=0.4).step(learner, make_batch())
    expected = (
        F.cross_entropy(twin(scaled(make_batch().x)), make_batch().y)
        + 0.7 * ((twin(x) - stored) ** 2).mean()
        + 0.4 * F.cross_entropy(twin(x), y)
    )
    torch.testing.assert_close(loss, expected.detach())
    assert_sgd_step(model, twin, expected)


def test_derpp_draws_twice_independently(stream, make_network, make_batch, make_learner):
    learner = make_learner(make_network(), capacity=24)
    split = stream.tasks[0].train
    learner.buffer.add({"x": split.x, "y": split.y, "logits": torch.zeros(24, 6)})
    drawn = []
    draw = learner.buffer.draw
    learner.buffer.draw = lambda size, generator: drawn.append(draw(size, generator)) or drawn[-1]
    DERpp().step(learner, make_batch())
    assert len(drawn) == 2
    assert [len(rows["y"]) for rows in drawn] == [3, 3]
    assert not torch.equal(drawn[0]["x"], drawn[1]["x"])
