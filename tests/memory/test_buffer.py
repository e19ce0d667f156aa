import math

import numpy
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forgetless.memory.buffer import Buffer
from forgetless.memory.slots import balanced_slots, herd, reservoir_slots
from forgetless.training.contract import detect_syncs


def reservoir_one_by_one(stream, numbers, capacity):
    """Algorithm 3 as the paper writes it, one example at a time."""
    buffer = [None] * capacity
    for seen, (example, number) in enumerate(zip(stream, numbers, strict=True)):
        if capacity > seen:
            buffer[seen] = example
        else:
            k = number % (seen + 1)  # a random integer from 0 to S
            if k < capacity:
                buffer[k] = example
    return buffer


@settings(max_examples=1200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**31))
def test_a_batch_at_once_equals_algorithm_3(capacity, batch, batches, seed):
    numbers = torch.randint(2**62, (batch * batches,), generator=torch.Generator().manual_seed(seed))
    stream = torch.arange(batch * batches)
    held = torch.full((capacity + 1,), -1)
    for start in range(0, batch * batches, batch):
        slots = reservoir_slots(numbers[start : start + batch], start, capacity)
        accepted = slots[slots < capacity]
        assert len(accepted.unique()) == len(accepted)  # no write depends on an order
        held.index_copy_(0, slots, stream[start : start + batch])
    expected = reservoir_one_by_one(stream.tolist(), numbers.tolist(), capacity)
    assert held[:capacity].tolist() == [-1 if example is None else example for example in expected]


def test_the_later_of_two_examples_for_one_slot_wins():
    # Examples 4, 5, 6 of the stream, all with number 1: slot 1 goes to the last of them.
    assert reservoir_slots(torch.tensor([1, 1, 1]), seen=4, capacity=2).tolist() == [2, 2, 1]


def test_the_count_of_examples_may_be_a_tensor():
    numbers = torch.randint(2**62, (8,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(reservoir_slots(numbers, torch.tensor(5), 4), reservoir_slots(numbers, 5, 4))


def test_the_reservoir_is_a_uniform_sample_of_the_stream(device):
    kept = numpy.zeros(60)
    for seed in range(2000):
        buffer = Buffer(6, seed=seed, device=device)
        for batch in torch.arange(60, device=device).split(7):
            buffer.add({"x": batch})
        kept[buffer["x"].cpu()] += 1
    assert kept.sum() == 12_000
    assert scipy.stats.chisquare(kept).pvalue > 0.001


def test_columns_keep_dtype_and_shape_and_belong_together(device):
    buffer = Buffer(5, device=device)
    for start in range(0, 40, 8):
        y = torch.arange(start, start + 8, device=device)
        image = y.to(torch.uint8).reshape(8, 1, 1).expand(8, 2, 2)
        buffer.add({"x": image, "y": y, "logits": y[:, None].to(torch.bfloat16).expand(8, 3), "task": y // 8})
    assert len(buffer) == 5
    assert buffer.seen == 40
    assert buffer["x"].dtype == torch.uint8
    assert buffer["logits"].dtype == torch.bfloat16
    rows = buffer.draw(5)
    assert torch.equal(rows["x"][:, 0, 0].long(), rows["y"])
    assert torch.equal(rows["logits"][:, 0].long(), rows["y"])
    assert torch.equal(rows["task"], rows["y"] // 8)


def test_draws_are_without_replacement_and_uniform():
    buffer = Buffer(10)
    buffer.add({"x": torch.arange(10)})
    drawn = numpy.zeros(10)
    for _ in range(3000):
        rows = buffer.draw(3)["x"]
        assert len(rows.unique()) == 3
        drawn[rows] += 1
    assert scipy.stats.chisquare(drawn).pvalue > 0.001


def test_a_draw_larger_than_the_buffer_returns_all():
    buffer = Buffer(10)
    buffer.add({"x": torch.arange(4)})
    assert sorted(buffer.draw(32)["x"].tolist()) == [0, 1, 2, 3]


def test_a_batch_larger_than_the_capacity_is_taken():
    buffer = Buffer(3)
    buffer.add({"x": torch.arange(100)})
    assert len(buffer["x"].unique()) == 3


def balanced_by_definition(labels, keys, capacity):
    """All examples ranked by key within their class; the lowest ranks are kept, ties by key."""
    rank = [sum(labels[j] == labels[i] and keys[j] < keys[i] for j in range(len(labels))) for i in range(len(labels))]
    return set(sorted(range(len(labels)), key=lambda i: (rank[i], keys[i]))[:capacity])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 999))
def test_the_balanced_memory_follows_its_definition(capacity, batch, labels, seed):
    y = torch.tensor(labels)
    keys = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held, held_y, held_keys = (torch.zeros(capacity + 1, dtype=torch.int64) for _ in range(3))
    filled = 0
    for rows in torch.arange(len(labels)).split(batch):
        unused = torch.arange(capacity) >= filled
        slots = balanced_slots(held_y[:-1], held_keys[:-1], y[rows], keys[rows], unused)
        for column, values in ((held, rows), (held_y, y[rows]), (held_keys, keys[rows])):
            column.index_copy_(0, slots, values)
        filled = min(capacity, filled + len(rows))
    assert set(held[:filled].tolist()) == balanced_by_definition(labels, keys.tolist(), capacity)


def test_the_balanced_buffer_holds_equal_shares(device):
    buffer = Buffer(12, policy="balanced", device=device)
    for y in ([0] * 50, [1] * 50, [2] * 3, [3] * 50):
        labels = torch.tensor(y, device=device)
        for batch in labels.split(8):
            buffer.add({"x": batch.float(), "y": batch})
    assert buffer["y"].bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(buffer["x"].long(), buffer["y"])


def test_herding_follows_the_mean_worked_by_hand():
    # Mean 3. First the nearest to 3: 2 (index 1). Then (2 + x) / 2 nearest 3: x = 6 gives 4, x = 1 gives 1.5.
    features = torch.tensor([[1.0], [2.0], [6.0]])
    assert herd(features, 3).tolist() == [1, 2, 0]


def test_herding_equals_a_plain_search():
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, picks = features.numpy().mean(0), []
    for k in range(1, 11):
        rest = [i for i in range(30) if i not in picks]
        distance = [numpy.linalg.norm(mean - (features.numpy()[[*picks, i]].sum(0)) / k) for i in rest]
        picks.append(rest[int(numpy.argmin(distance))])
    assert herd(features, 10).tolist() == picks


def test_replace_puts_new_rows_in_place_of_all():
    buffer = Buffer(4)
    buffer.replace({"x": torch.tensor([1, 2, 3]), "y": torch.tensor([0, 0, 1])})
    buffer.replace({"x": torch.tensor([7, 8]), "y": torch.tensor([1, 1])})
    assert buffer["x"].tolist() == [7, 8]
    with pytest.raises(ValueError, match="5 examples do not fit a capacity of 4"):
        buffer.replace({"x": torch.zeros(5, dtype=torch.int64), "y": torch.zeros(5, dtype=torch.int64)})


@pytest.mark.parametrize("policy", ["reservoir", "balanced", "distinct"])
def test_a_restored_buffer_continues_alike(policy, tmp_path, device):
    def batch(i):
        return {"x": torch.arange(6, device=device) + 10 * i, "y": torch.arange(6, device=device) % 3}

    straight, stopped = (Buffer(8, policy=policy, seed=3, device=device) for _ in range(2))
    for i in range(5):
        straight.add(batch(i))
        stopped.add(batch(i))
    torch.save(stopped.state_dict(), tmp_path / "buffer.pt")
    resumed = Buffer(8, policy=policy, seed=99, device=device)
    resumed.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
    for i in range(5, 12):
        straight.add(batch(i))
        resumed.add(batch(i))
        assert torch.equal(straight.draw(4)["x"], resumed.draw(4)["x"])
    assert torch.equal(straight["x"], resumed["x"])
    assert straight.seen == resumed.seen == 72


def test_a_state_of_another_policy_is_refused():
    with pytest.raises(ValueError, match="the state has policy 'balanced'; this buffer has 'reservoir'"):
        Buffer(5).load_state_dict(Buffer(5, policy="balanced").state_dict())
    with pytest.raises(ValueError, match="the state has policy 'distinct'; this buffer has 'balanced'"):
        Buffer(5, policy="balanced").load_state_dict(Buffer(5, policy="distinct").state_dict())


def test_a_smaller_balanced_buffer_keeps_the_lowest_keys_of_each_class():
    large, small, expected = (Buffer(size, policy="balanced", seed=5) for size in (12, 6, 6))
    batch = {"x": torch.arange(40), "y": torch.arange(40) % 3}
    large.add(batch)
    expected.add(batch)
    small.load_state_dict(large.state_dict())
    assert sorted(small["x"].tolist()) == sorted(expected["x"].tolist())
    assert small.seen == 40


def test_a_smaller_reservoir_is_a_uniform_sample():
    kept = numpy.zeros(30)
    for seed in range(600):
        large = Buffer(10, seed=seed)
        large.add({"x": torch.arange(30)})
        small = Buffer(4, seed=seed)
        small.load_state_dict(large.state_dict())
        assert (len(small), small.seen) == (4, 30)
        kept[small["x"]] += 1
    assert scipy.stats.chisquare(kept).pvalue > 0.001


@pytest.mark.parametrize("policy", ["reservoir", "balanced"])
def test_a_larger_buffer_keeps_all_and_fills_up(policy):
    small, large = Buffer(4, policy=policy), Buffer(9, policy=policy)
    small.add({"x": torch.arange(20), "y": torch.arange(20) % 2})
    large.load_state_dict(small.state_dict())
    assert large["x"].tolist() == small["x"].tolist()
    large.add({"x": torch.arange(100, 105), "y": torch.arange(5) % 2})
    assert sorted(large["x"].tolist()) == sorted([*small["x"].tolist(), *range(100, 105)])


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, math.inf])
def test_a_capacity_below_one_or_not_whole_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity is .* must be a whole number of 1 or more"):
        Buffer(capacity)


def test_a_batch_that_does_not_fit_changes_nothing():
    buffer = Buffer(4)
    buffer.add({"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64)})
    y = torch.ones(2, dtype=torch.int64)
    for bad, match in (
        ({"x": torch.ones(2, 4), "y": y}, r"'x' has examples of shape \(4,\); the buffer holds shape \(3,\)"),
        ({"x": torch.ones(2, 3).double(), "y": y}, "'x' has dtype torch.float64; the buffer holds torch.float32"),
        ({"x": torch.ones(3, 3), "y": y}, "columns differ in length: {'x': 3, 'y': 2}"),
        ({"x": torch.ones(2, 3)}, "holds the columns x, y; this batch has x"),
    ):
        with pytest.raises(ValueError, match=match):
            buffer.add(bad)
    assert buffer.seen == 2
    assert not buffer["x"].any()


def test_wrong_use_says_what_would_be_right():
    with pytest.raises(ValueError, match="policy is 'fifo'; it must be one of reservoir, balanced"):
        Buffer(4, policy="fifo")
    with pytest.raises(ValueError, match="the buffer is empty"):
        Buffer(4).draw(2)
    with pytest.raises(ValueError, match="needs the column 'y'"):
        Buffer(4, policy="balanced").add({"x": torch.zeros(2)})
    with pytest.raises(KeyError, match="no column named 'z'"):
        Buffer(4)["z"]


@pytest.mark.parametrize("policy", ["reservoir", "balanced"])
def test_the_buffer_does_not_synchronise(policy):
    buffer = Buffer(5, policy=policy)
    buffer.add({"x": torch.rand(4, 2), "y": torch.zeros(4, dtype=torch.int64)})
    buffer._sampler._counter = torch.tensor(4)  # the way of a GPU, not that of a CPU, which reads
    with detect_syncs() as syncs:
        for _ in range(3):
            buffer.add({"x": torch.rand(4, 2), "y": torch.zeros(4, dtype=torch.int64)})
            buffer.draw(3)
        assert not syncs
        buffer["x"].sum().item()
    assert syncs == ["aten::_local_scalar_dense"]


@pytest.mark.parametrize("policy", ["reservoir", "balanced"])
def test_examples_are_added_after_a_replacement(policy):
    buffer = Buffer(20, policy=policy)
    buffer.replace({"x": torch.ones(10), "y": torch.zeros(10, dtype=torch.int64)})
    buffer.add({"x": torch.full((5,), 2.0), "y": torch.ones(5, dtype=torch.int64)})
    assert sorted(buffer["x"].tolist()) == [1.0] * 10 + [2.0] * 5


def test_a_column_that_is_no_tensor_is_refused():
    for bad, what in (
        ([1, 2], "a list; .*; give a tensor, or several as a mapping, {name: tensor}"),
        (torch.tensor(1), r"a torch.strided tensor; it must be a dense tensor, one row per example"),
        (numpy.zeros(2), "a ndarray; .*; torch.from_numpy makes one"),
        (torch.eye(2).to_sparse(), "a torch.sparse_coo tensor; it must be a dense tensor"),
    ):
        with pytest.raises(TypeError, match=f"column 'x' is {what}"):
            Buffer(4).add({"x": bad})


def test_a_capacity_may_be_a_numpy_integer():
    assert Buffer(numpy.int64(5)).capacity == 5


def test_a_state_without_examples_keeps_the_random_numbers():
    one = Buffer(5, generator=torch.Generator().manual_seed(7))
    torch.rand(3, generator=one.generator)
    other = Buffer(5, generator=torch.Generator())
    other.load_state_dict(one.state_dict())
    assert torch.equal(torch.rand(2, generator=one.generator), torch.rand(2, generator=other.generator))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["reservoir", "balanced"]), st.integers(1, 12), st.lists(st.integers(1, 7), max_size=6),
    st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 2**31),
)  # fmt: skip
def test_any_buffer_resumes_from_its_state(policy, capacity, before, after, seed):
    def batch(size, number):
        y = torch.arange(size) % 3
        return {"x": torch.full((size, 2), float(number)), "y": y}

    whole = Buffer(capacity, policy=policy, seed=seed)
    for number, size in enumerate(before):
        whole.add(batch(size, number))
    resumed = Buffer(capacity, policy=policy, seed=seed)
    resumed.load_state_dict(whole.state_dict())
    for number, size in enumerate(after):
        for one in (whole, resumed):
            one.add(batch(size, 100 + number))
    assert len(whole) == len(resumed) == min(capacity, sum(before) + sum(after))
    assert whole.seen == resumed.seen == sum(before) + sum(after)
    for name in whole.columns:
        assert torch.equal(whole[name], resumed[name])
    drawn = [one.draw(3)["x"] for one in (whole, resumed)]
    assert torch.equal(*drawn)


def test_a_bad_seed_or_label_is_refused():
    with pytest.raises(ValueError, match="seed is 'a'; it must be a whole number"):
        Buffer(5, seed="a")
    with pytest.raises(ValueError, match=r"with one class per example; y has shape \(4, 3\)"):
        Buffer(5, policy="balanced").add({"x": torch.rand(4, 2), "y": torch.eye(4, 3)})


def test_a_buffer_prints_how_full_it_is():
    buffer = Buffer(2000, policy="reservoir")
    assert repr(buffer) == "Buffer(0 of 2,000 examples, reservoir)"
    buffer.add({"x": torch.rand(1500, 3), "y": torch.arange(1500)})
    assert repr(buffer) == "Buffer(1,500 of 2,000 examples, reservoir: x, y)"
