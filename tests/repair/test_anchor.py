"""How far training has moved the weights."""

import torch
from torch import nn

from forgetless.repair.anchor import Anchor


def move(network, distance):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(distance)


def test_an_anchor_keeps_the_movement_up_to_where_it_settled():
    network = nn.Linear(2, 1).double()
    anchor = Anchor(network)
    anchor.take(["weight"])
    weight = network.weight.detach().clone()
    move(network, 3)
    assert list(anchor.before()) == ["weight"]
    torch.testing.assert_close(anchor.before()["weight"], weight)
    anchor.settle()
    move(network, -2.5)
    anchor.settle()  # no effect
    torch.testing.assert_close(anchor.held["weight"], torch.full((1, 2), 3.0).double())
    torch.testing.assert_close(anchor.before()["weight"], weight + 0.5 - 3)
    anchor.take(["bias"])
    assert not anchor.settled
    torch.testing.assert_close(anchor.before()["bias"], network.bias.detach())


def test_a_state_keeps_its_values_while_the_anchor_changes():
    network = nn.Linear(2, 1)
    anchor, other = Anchor(network), Anchor(network)
    anchor.take(["weight"])
    held, weight = dict(anchor.held), network.weight.detach().clone()
    other.load(held, settled=False)
    other.settle()
    anchor.settle()
    assert torch.equal(held["weight"], weight)


def test_an_anchor_of_inference_mode_goes_on_outside():
    network = nn.Linear(2, 1)
    anchor = Anchor(network)
    with torch.inference_mode():
        anchor.take(["weight"])
    move(network, 1)
    anchor.settle()
    torch.testing.assert_close(anchor.held["weight"], torch.ones(1, 2))


def test_weights_of_another_shape_than_now_stay_as_they_are():
    network = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 2))
    anchor = Anchor(network)
    anchor.take(["0.weight", "1.weight"])
    weight = network[1].weight.detach().clone()
    network[1] = nn.Linear(1, 3)
    anchor.settle()
    assert torch.equal(anchor.held["1.weight"], weight)
    assert torch.equal(anchor.held["0.weight"], torch.zeros(1, 2))
