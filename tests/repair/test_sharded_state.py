"""The state of several processes is dealt out to any number of them."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from forgetless import FPF, ShardedState
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.repair.sharded_state import dealt


def held(policy, parts, capacity=100):
    """Return the states of buffers, each of which saw its numbers, and the numbers that each holds out."""
    buffers = [Buffer(capacity, policy=policy) for _ in parts]
    for buffer, numbers in zip(buffers, parts, strict=True):
        if len(numbers):
            buffer.add({"x": torch.tensor(numbers).float()[:, None], "y": torch.tensor(numbers) % 3})
    judged = [set(b.held_out()["x"].flatten().tolist()) if len(b) else set() for b in buffers]
    return [buffer.state_dict() for buffer in buffers], judged


def loaded(policy, state, capacity=100):
    buffer = Buffer(capacity, policy=policy)
    buffer.load_state_dict(state)
    return buffer


@pytest.mark.parametrize("policy", ["distinct", "reservoir", "balanced"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_example_is_dealt_once(policy, count):
    states, judged = held(policy, [range(24), range(100, 116), range(200, 208)])
    buffers = [loaded(policy, dealt(states, rank, count)) for rank in range(count)]
    numbers = [buffer["x"].flatten().tolist() for buffer in buffers]
    assert sorted(chain(*numbers)) == [*range(24), *range(100, 116), *range(200, 208)]
    assert set().union(*(b.held_out()["x"].flatten().tolist() for b in buffers)) == set().union(*judged)
    assert max(map(len, numbers)) - min(map(len, numbers)) <= HELD_OUT
    assert sum(buffer.seen for buffer in buffers) == 48


def test_an_example_of_two_processes_is_held_once():
    states, _ = held("distinct", [range(10), range(5, 15)])
    buffer = loaded("distinct", dealt(states, 0, 1))
    assert sorted(buffer["x"].flatten().tolist()) == list(range(15))
    buffer.add({"x": torch.arange(5, 20.0)[:, None], "y": torch.arange(5, 20) % 3})
    assert sorted(buffer["x"].flatten().tolist()) == list(range(20))


def test_a_smaller_buffer_takes_its_part():
    states, _ = held("distinct", [range(30), range(30, 60)], capacity=30)
    assert len(loaded("distinct", dealt(states, 0, 4), capacity=15)) == 15


def test_empty_buffers_are_dealt():
    states, _ = held("distinct", [(), ()])
    assert len(loaded("distinct", dealt(states, 0, 1))) == 0
    states, _ = held("distinct", [(), range(3)])
    assert [len(loaded("distinct", dealt(states, rank, 2))) for rank in range(2)] == [3, 0]


def trained(**settings):
    torch.manual_seed(0)
    fpf = FPF(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), capacity=16, **settings)
    for step in range(4):
        fpf.observe(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))
        if step == 2:
            fpf.boundary()
    return fpf


def plain(fpf):
    """Return a state with lists for tensors."""
    return tree_map_only(torch.Tensor, torch.Tensor.tolist, fpf.state_dict())


@pytest.mark.parametrize("settings", [{}, {"window": 2}], ids=["budget", "schedule"])
def test_the_state_of_two_resumes_on_one(settings):
    fpf = trained(**settings)
    state = ShardedState(fpf).state_dict()
    (part,) = state["parts"]
    other = trained(**settings)
    ShardedState(other).load_state_dict({**state, "parts": (part, part)})
    assert other.step == fpf.step
    assert other.shifts == fpf.shifts == [3]
    assert other.state_dict()["processes"] == [0, 1]
    ShardedState(other).load_state_dict(state)
    assert plain(other) == plain(fpf)


def test_examples_that_were_not_counted_yet_are_counted_once():
    fpf = trained()
    state = ShardedState(fpf).state_dict()
    (part,) = state["parts"]
    part["upkeep"]["uncounted"] = 7
    ShardedState(fpf).load_state_dict({**state, "parts": (part, part, part)})
    assert fpf.state_dict()["upkeep"]["uncounted"] == 21


def test_a_missing_shard_is_named_and_nothing_changes():
    fpf = trained()
    state = ShardedState(fpf).state_dict()
    before = plain(fpf)
    del state["weights"]["anchor"]["2.weight"]
    with pytest.raises(ValueError, match=r"^the state has no entry weights\.anchor\.2\.weight: a shard is missing$"):
        ShardedState(fpf).load_state_dict(state)
    with pytest.raises(ValueError, match="^the state has no entry parts; give that of ShardedState"):
        ShardedState(fpf).load_state_dict({"weights": {}})
    assert plain(fpf) == before


def test_a_sharded_state_without_parts_is_refused():
    fpf = trained()
    match = r"entry parts is \(\); it must hold the state of at least one process, as ShardedState\(fpf\)\.state_dict"
    with pytest.raises(ValueError, match=match):
        ShardedState(fpf).load_state_dict({**ShardedState(fpf).state_dict(), "parts": ()})


def test_an_fpf_refuses_a_sharded_state():
    fpf = trained()
    match = r"that of a ShardedState; load it with ShardedState\(fpf\)\.load_state_dict\(state\)$"
    with pytest.raises(ValueError, match=match):
        fpf.load_state_dict(ShardedState(fpf).state_dict())
