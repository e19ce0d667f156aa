import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless.data.builders import from_tensors
from forgetless.networks import mlp, resnet18
from forgetless.networks.mlp import backpropagates
from helpers import learner, small_stream


def test_an_update_equals_torchs_sgd():
    torch.manual_seed(0)
    network = mlp(6, inputs=4)
    twin = copy.deepcopy(network)
    mine = learner(network, small_stream(), lr=0.3, weight_decay=0.01)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3, weight_decay=0.01)
    x, y = torch.rand(5, 4), torch.randint(6, (5,))
    mine.update(F.cross_entropy(network(x), y))
    F.cross_entropy(twin(x), y).backward()
    optimizer.step()
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("frozen", ["", "fc1", "fc2", "fc3"])
def test_an_sgd_step_of_the_mlp_has_autograds_bits(frozen):
    torch.manual_seed(0)
    network = mlp(6, inputs=4)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not (frozen and name.startswith(frozen)))
    twin = copy.deepcopy(network)
    mine, other = (learner(one, small_stream(), lr=0.3, weight_decay=0.01) for one in (network, twin))
    for _ in range(3):
        x, y = torch.rand(5, 1, 2, 2), torch.randint(6, (5,))
        assert backpropagates(network, mine.engine)
        loss, logits = mine.step_on(x, y)
        expected = twin(x)
        assert torch.equal(logits, expected)
        assert torch.equal(loss, F.cross_entropy(expected, y))
        assert not loss.requires_grad
        assert not logits.requires_grad
        other.update(F.cross_entropy(expected, y))
        for one, two in zip(network.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one, two)


def test_an_sgd_step_of_a_resnet_has_autograds_bits():
    torch.manual_seed(0)
    network = resnet18(6, width=4)
    twin = copy.deepcopy(network)
    x, y = torch.rand(4, 3, 8, 8), torch.randint(6, (4,))
    loss, _ = learner(network, small_stream(), lr=0.3).step_on(x, y)
    learner(twin, small_stream(), lr=0.3).update(F.cross_entropy(twin(x), y))
    assert not loss.requires_grad
    for one, two in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_repairs_crop_where_training_does_not_and_the_network_has_convolutions():
    stream = from_tensors(torch.rand(40, 3, 16, 24), torch.arange(4).repeat(10), [2, 2])
    assert learner(resnet18(4, width=2), stream).automatic_pad() == 2  # an eighth of the shorter side
    assert learner(resnet18(4, width=2), replace(stream, pad=4)).automatic_pad() == 0
    assert learner(mlp(4, inputs=3 * 16 * 24), stream).automatic_pad() == 0
    flat = from_tensors(torch.rand(40, 192), torch.arange(4).repeat(10), [2, 2])
    reshaping = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), resnet18(4, width=2))
    assert learner(reshaping, flat).automatic_pad() == 0


def test_a_parameter_outside_the_loss_stays():
    network = mlp(6, inputs=4)
    before = network.fc1.weight.detach().clone()
    learner(network, small_stream()).update(network.fc3.bias.sum())
    assert torch.equal(network.fc1.weight, before)


def test_replay_draws_from_the_buffer_and_augments():
    mine = learner(mlp(6, inputs=4), small_stream(), capacity=10)
    mine.buffer.add({"x": torch.full((5, 1, 2, 2), 51, dtype=torch.uint8), "y": torch.arange(5)})
    rows = mine.replay()
    assert len(rows["y"].unique()) == 3
    torch.testing.assert_close(rows["x"], torch.full((3, 1, 2, 2), 0.2))


def test_classes_seen_so_far():
    mine = learner(mlp(6, inputs=4), small_stream())
    assert [mine.seen(task) for task in (-1, 0, 1, 2)] == [0, 2, 4, 6]


def test_flops_are_counted_once_and_added_each_time():
    network = mlp(6, inputs=4, hidden=())
    mine = learner(network, small_stream())
    for _ in range(3):
        mine.run_counted("train", "key", lambda: network(torch.rand(2, 4)))
    assert mine.flops == {"train": 3 * 2 * 2 * 4 * 6}
    mine.spend("memory", 10)
    mine.spend("memory", 10, backward=True)
    assert mine.flops["memory"] == 10 * 2 * 24 + 10 * 6 * 24


def test_without_declared_memory_there_is_no_buffer():
    with pytest.raises(ValueError, match='has no buffer: its memory is "none"; declare memory = "reservoir"'):
        _ = learner(mlp(6, inputs=4), small_stream()).buffer


def test_batch_norm_allows_counting_one_small_example():
    mine = learner(resnet18(6, channels=1, width=2), small_stream())  # 2×2 images: one pixel in the last blocks
    mine.spend("memory", 3)
    assert mine.flops["memory"] > 0
