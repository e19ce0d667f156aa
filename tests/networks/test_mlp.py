"""The written-out backpropagation of the MLP has autograd's bits, and is used only for an unchanged MLP."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from forgetless import networks
from forgetless.compute.engine import Engine
from forgetless.compute.flops import count
from forgetless.networks.mlp import MLP, backpropagates
from helpers import learner, small_stream


@pytest.mark.parametrize(
    "frozen", [[], ["fc1.weight"], ["fc1.weight", "fc1.bias", "fc2.weight"], ["fc3.weight", "fc3.bias"]]
)
def test_backpropagate_has_autograds_bits_and_flops(frozen):
    torch.manual_seed(0)
    network = networks.mlp(6, inputs=40)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in frozen)
    x, y = torch.rand(20, 1, 5, 8), torch.randint(6, (20,))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    loss, logits, gradients = network.backpropagate(x, y)
    expected = network(x)
    assert torch.equal(logits, expected)
    assert torch.equal(loss, F.cross_entropy(expected, y))
    wanted = torch.autograd.grad(F.cross_entropy(expected, y), trained)
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert torch.equal(gradient, exact)
    assert count(lambda: network.backpropagate(x, y)) == count(lambda: F.cross_entropy(network(x), y).backward())


def test_backpropagate_returns_only_the_chosen_gradients():
    torch.manual_seed(0)
    network = networks.mlp(6, inputs=40)
    x, y = torch.rand(20, 40), torch.randint(6, (20,))
    chosen = [network.fc2.weight, network.fc3.bias]
    gradients = network.backpropagate(x, y, chosen)[2]
    wanted = torch.autograd.grad(F.cross_entropy(network(x), y), chosen)
    assert [torch.equal(*pair) for pair in zip(gradients, wanted, strict=True)] == [True, True]


def test_only_an_mlp_in_fp32_on_a_cpu_backpropagates(device):
    network = networks.mlp(6, inputs=4)
    assert backpropagates(network, Engine(device)) is (device == "cpu")
    assert not backpropagates(nn.Linear(4, 6), Engine())


def test_an_overridden_mlp_is_called():
    class Scaled(MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    assert not backpropagates(Scaled((4, 8, 6), xavier=True), Engine())


def doubled(gradient):
    return 2 * gradient


def share_layer(network):
    network.fc3 = network.fc2


def tie_weights(network):
    network.fc3.weight = network.fc2.weight


def add_parameter(network):
    network.temperature = nn.Parameter(torch.ones(()))


def add_layer(network):
    network.fc4 = nn.Linear(40, 40)


def hook_weight(network):
    network.fc1.weight.register_hook(doubled)


def hook_network(network):
    network.register_forward_hook(lambda *_: None)


def prune_and_remove(network):
    prune.identity(network.fc1, "weight")
    prune.remove(network.fc1, "weight")


def widen(network):
    network.fc2 = nn.Linear(40, 40)


@pytest.mark.parametrize(
    ("change", "unchanged"),
    [
        (share_layer, False), (tie_weights, False), (add_parameter, False), (add_layer, False), (hook_weight, False),
        (hook_network, False), (prune_and_remove, False), (widen, True),
    ],
)  # fmt: skip
def test_a_changed_mlp_trains_as_torch_does(change, unchanged):
    """Whatever was changed, a step ends at the weights of autograd and a plain call."""
    torch.manual_seed(0)
    network = networks.mlp(40, inputs=40, hidden=(40, 40))
    change(network)
    twin = copy.deepcopy(network)
    if change is hook_weight:  # copies have no hooks
        hook_weight(twin)
    assert network.unchanged is unchanged
    x, y = torch.rand(20, 40), torch.randint(40, (20,))
    learner(network, small_stream(), lr=0.1).step_on(x, y)
    parameters = list(twin.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(twin(x), y), parameters, allow_unused=True)
    for found, start, gradient in zip(network.parameters(), parameters, gradients, strict=True):
        torch.testing.assert_close(found, start if gradient is None else start - 0.1 * gradient)
