"""The average of the weights after the latest repairs, from which the repair at the end may start."""

import pytest
import torch
from torch import nn

from forgetless.repair.average import Average


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def fill(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


NAMES = ["0.weight", "1.running_mean", "2.bias"]


@pytest.mark.parametrize("host", [False, True])
def test_each_newer_weight_has_a_twentieth(host):
    model = network()
    average = Average(model)
    for value in (1.0, 2.0, 5.0):
        fill(model, value)
        average.add(NAMES, host=host)
    undo = average.install(NAMES)
    expected = 0.95 * (0.95 * 1 + 0.05 * 2) + 0.05 * 5  # 1.2475
    for name, tensor in model.state_dict().items():
        assert tensor.flatten()[0].item() == pytest.approx(expected if name in NAMES else 5.0), name
    undo()
    assert all(torch.equal(tensor, torch.full_like(tensor, 5)) for tensor in model.state_dict().values())


def test_there_is_none_of_other_tensors_or_of_a_head_that_has_grown():
    model = network()
    average = Average(model)
    assert average.install(NAMES) is None
    average.add(NAMES, host=False)
    assert average.install(NAMES[:2]) is None
    model[2] = nn.Linear(3, 4)
    assert average.install(NAMES) is None
    fill(model, 7.0)
    average.add(NAMES, host=False)  # begins again
    fill(model, 8.0)
    assert average.install(NAMES) is not None
    assert model[2].bias.tolist() == [7.0] * 4


def test_a_state_continues_with_the_same_bits():
    model = network()
    average = Average(model)
    average.add(NAMES, host=False)
    fill(model, 0.3)
    other = Average(model)
    other.load_state_dict(average.state_dict())
    for one in (average, other):
        one.add(NAMES, host=False)
    fill(model, 0.9)
    states = average.state_dict(), other.state_dict()
    assert states[0].keys() == set(NAMES)
    assert all(torch.equal(states[0][name], states[1][name]) for name in NAMES)
    average.clear()
    assert not average.state_dict()
