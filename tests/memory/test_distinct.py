"""The buffer's policy "distinct", compared with a plain Python implementation."""

import copy
import struct
import zlib

import numpy
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forgetless.memory.buffer import Buffer
from forgetless.memory.hashing import content_keys, host_content_keys, word_weights, words
from forgetless.memory.labels import labelled
from forgetless.memory.sketch import HostSlots, Sketch
from forgetless.memory.slots import EMPTY, distinct_slots
from forgetless.training.contract import detect_syncs

MASK = 2**64 - 1


def python_mix(number):
    """SplitMix64's last steps with arithmetic shifts, on Python's integers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        signed = number - 2**64 if number >> 63 else number
        number = (number ^ ((signed >> shift) & MASK)) * factor & MASK
    return number


def python_key(columns, salt=0):
    """The key of one example, {column: bytes}."""
    total = salt
    for name, content in columns.items():
        for position, (word,) in enumerate(struct.iter_unpack("<i", content)):
            place = (position + (zlib.crc32(name.encode()) << 31)) * 0x9E3779B97F4A7C15 & MASK
            total += (python_mix(place) | 1) * word
    return python_mix(total & MASK) & (2**62 - 1)


def python_buffer(stream, capacity, salt=0):
    """Return the examples held after a stream of (x, y, period): sorted within strata, one period after the other."""
    held = {}  # {key: (stratum, x)}
    for period in sorted({entry[2] for entry in stream}):
        older = set(held)
        for x, y, when in stream:
            key = python_key({"x": struct.pack("<f", x), "y": struct.pack("<q", y)}, salt)
            if when == period and key not in older:
                held[key] = ((y, period), x)
        strata = {}
        for key in sorted(held):
            strata.setdefault(held[key][0], []).append(key)
        ranked = sorted((rank, key) for keys in strata.values() for rank, key in enumerate(keys))
        held = {key: held[key] for _, key in ranked[:capacity]}
    return sorted(x for _, x in held.values())


def offer(buffer, entries):
    """Add examples (x, y) as one batch."""
    x, y = zip(*entries, strict=True)
    buffer.add({"x": torch.tensor(x, dtype=torch.float32), "y": torch.tensor(y)})


def on_device(capacity, example, **given):
    """A buffer that takes the way of a GPU, on the CPU."""
    buffer = Buffer(capacity, policy="distinct", **given)
    buffer._open(example)._host = None
    return buffer


EXAMPLE = {"x": torch.zeros(1), "y": torch.zeros(1, dtype=torch.int64)}
streams = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=60)


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 20), st.lists(streams, min_size=1, max_size=4), st.integers(1, 25), st.integers(0, 5), st.booleans()
)
def test_the_buffer_equals_a_plain_implementation(capacity, periods, batch, seed, gpu):
    buffer = on_device(capacity, EXAMPLE, seed=seed) if gpu else Buffer(capacity, policy="distinct", seed=seed)
    stream = []
    for period, entries in enumerate(periods):
        buffer.period = period
        for start in range(0, len(entries), batch):
            offer(buffer, entries[start : start + batch])
        stream += [(x, y, period) for x, y in entries]
        assert sorted(buffer["x"].tolist()) == python_buffer(stream, capacity, seed)
    assert len(buffer) == len(buffer["y"])
    assert buffer.seen == len(stream)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20), st.lists(streams, min_size=1, max_size=3), st.booleans())
def test_one_at_a_time_equals_all_at_once(capacity, periods, gpu):
    one, whole = (on_device(capacity, EXAMPLE) if gpu else Buffer(capacity, policy="distinct") for _ in range(2))
    for period, entries in enumerate(periods):
        one.period = whole.period = period
        for entry in entries:
            offer(one, [entry])
            len(one)  # writes it
        offer(whole, entries)
    assert sorted(one["x"].tolist()) == sorted(whole["x"].tolist())
    if not gpu:  # examples are even in the same slots
        assert one["x"].tolist() == whole["x"].tolist()


batches_of_keys = st.lists(st.lists(st.integers(0, 150) | st.just(EMPTY), min_size=1, max_size=40), max_size=5)


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), batches_of_keys, st.sets(st.integers(0, 150), max_size=30))
def test_a_batch_takes_the_slots_of_its_examples_one_by_one(capacity, classes, batches, older):
    whole, single = (HostSlots(capacity, older=older) for _ in range(2))
    in_whole, in_single = {}, {}  # {slot: key}
    in_tensors, strata = torch.full((capacity + 1,), EMPTY), torch.zeros(capacity + 1, dtype=torch.int64)
    for batch in batches:
        keys = torch.tensor(batch)
        in_whole |= {slot: batch[row] for slot, row in whole.take(keys, keys % classes).items()}
        for key in keys.split(1):
            in_single |= {slot: key.item() for slot in single.take(key, key % classes)}
        assert in_whole == in_single
        keys = torch.tensor([EMPTY if key in older else key for key in batch])
        slots = distinct_slots(in_tensors[:-1], strata[:-1], keys, keys % classes)
        in_tensors.index_copy_(0, slots, keys)
        strata.index_copy_(0, slots, keys % classes)
        assert sorted(in_whole.values()) == [key for key in sorted(in_tensors[:-1].tolist()) if key != EMPTY]


@pytest.mark.parametrize("sizes", [(1, 3, 2, 2), (4, 4), (5, 1, 2), (3, 0, 5)])
def test_batches_that_wait_together_enter_in_order(sizes, monkeypatch):
    monkeypatch.setattr("forgetless.memory.stage.ROWS", 4)
    stream = [(float(n), n % 2, 0) for n in range(8)]
    buffer = Buffer(6, policy="distinct")
    rows = iter(stream)
    for size in sizes:
        x, y = torch.tensor([next(rows)[:2] for _ in range(size)]).reshape(-1, 2).T
        buffer.add({"x": x, "y": y.long()})
    assert sorted(buffer["x"].tolist()) == python_buffer(stream, 6)
    whole = Buffer(6, policy="distinct")
    offer(whole, [entry[:2] for entry in stream])
    assert buffer["x"].tolist() == whole["x"].tolist()  # even in the same slots


def test_the_length_is_right_after_it_was_read_while_batches_wait():
    buffer = on_device(8, EXAMPLE)
    offer(buffer, [(1.0, 0), (2.0, 1)])
    assert buffer._sampler.filled() == 0  # as a saved state reads it
    assert len(buffer) == 2


def test_later_epochs_leave_the_buffer_as_one_epoch_does(device):
    x, y = torch.rand(300, 5, device=device), torch.arange(300, device=device) % 4
    buffer = Buffer(40, policy="distinct")
    first = None
    for epoch in range(4):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(epoch))
        for rows in order.to(device).split(13):
            buffer.add({"x": x[rows], "y": y[rows]})
        held = {tuple(row) for row in buffer["x"].tolist()}
        assert len(held) == len(buffer) == 40
        first = first or held
        assert held == first
    assert buffer["y"].bincount().tolist() == [10] * 4


def test_examples_of_an_earlier_period_keep_their_share(device):
    buffer = Buffer(40, policy="distinct", device=device)
    for period, count in enumerate((30, 5000, 5000)):
        buffer.period = period
        rows = torch.arange(count, device=device)
        for batch in rows.split(500):
            buffer.add({"x": batch + 10_000 * period, "y": batch % 2})
    strata = buffer["x"] // 10_000 * 2 + buffer["y"]
    assert sorted(strata.bincount().tolist()) == [6, 6, 7, 7, 7, 7]  # 3 periods of 2 classes


def test_remembered_examples_have_shares_of_their_own():
    buffer = Buffer(20, policy="distinct")
    for start in (0, 10):
        buffer.add({"x": torch.arange(start, start + 10), "y": torch.zeros(10, dtype=torch.int64)}, remembered=True)
    for _ in range(3):
        buffer.add({"x": torch.arange(100, 900), "y": torch.zeros(800, dtype=torch.int64)})
    assert (buffer["x"] < 100).sum() == 10


def test_the_sample_of_distinct_examples_is_uniform():
    kept = numpy.zeros(60)
    for seed in range(1500):
        buffer = Buffer(6, policy="distinct", seed=seed)
        buffer.add({"x": torch.arange(60), "y": torch.zeros(60, dtype=torch.int64)})
        buffer.add({"x": torch.arange(50), "y": torch.zeros(50, dtype=torch.int64)})  # repeats
        kept[buffer["x"]] += 1
    assert kept.sum() == 9000
    assert scipy.stats.chisquare(kept).pvalue > 0.001


@pytest.mark.parametrize(
    ("y", "missing"),
    [
        (torch.tensor([1, -100, 0]), [False, True, False]),
        (torch.tensor([[1, -100], [-100, -100]], dtype=torch.int32), [False, True]),
        (torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]]), [False, True]),
        (torch.tensor([0.5, torch.nan], dtype=torch.bfloat16), [False, True]),
        (torch.tensor([156, 0], dtype=torch.uint8), [False, False]),  # 156 is -100 modulo 256
        (torch.tensor([True, False]), [False, False]),
    ],
)
@pytest.mark.parametrize("gpu", [False, True])
def test_examples_without_a_label_are_rejected(y, missing, gpu):
    assert (~labelled({"y": y})).tolist() == missing
    example = {"x": torch.zeros(1), "y": y[:1]}
    buffer = on_device(8, example) if gpu else Buffer(8, policy="distinct")
    buffer.add({"x": torch.arange(len(y)).float(), "y": y})
    assert sorted(buffer["x"].tolist()) == [i for i, value in enumerate(missing) if not value]
    assert buffer.seen == len(y)


def test_one_target_of_several_is_a_label():
    batch = {"y.a": torch.tensor([-100, 1, -100]), "y.b": torch.tensor([torch.nan, torch.nan, 0.5])}
    assert labelled(batch).tolist() == [False, True, True]
    buffer = Buffer(8, policy="distinct")
    for _ in range(2):
        buffer.add({"x": torch.arange(3), **batch})
    assert sorted(buffer["x"].tolist()) == [1, 2]


def test_a_buffer_of_unlabelled_examples_is_empty():
    buffer = Buffer(4, policy="distinct")
    buffer.add({"x": torch.rand(3, 2), "y": torch.full((3,), -100)})
    assert (len(buffer), buffer.seen) == (0, 3)
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer.draw(1)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (4, 2, 2)])
def test_keys_are_equal_only_for_equal_examples(dtype, shape, device):
    content = torch.randint(0, 2, (64, *shape), generator=torch.Generator().manual_seed(0)).to(device, dtype)
    keys = content_keys({"x": content}, {"x": word_weights("x", content)}, 3)
    rows = [tuple(map(str, row)) for row in content.reshape(64, -1).tolist()]
    assert len(set(keys.tolist())) == len(set(rows)) == len(set(zip(rows, keys.tolist(), strict=True)))
    assert 0 <= keys.min() <= keys.max() < 2**62
    on_cpu = content_keys({"x": content.cpu()}, {"x": word_weights("x", content.cpu())}, 3)
    assert torch.equal(keys.cpu(), on_cpu)
    assert torch.equal(host_content_keys({"x": content.cpu()}, {"x": word_weights("x", content.cpu())}, 3), on_cpu)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_that_wait_keep_their_values(dtype, device):
    x = (torch.arange(12, device=device).reshape(3, 4) % 7).to(dtype).T  # not contiguous
    x = x.conj().requires_grad_() if dtype == torch.complex64 else x
    buffer = Buffer(8, policy="distinct")
    for rows in (slice(3), slice(3, 4)):
        buffer.add({"x": x[rows], "y": torch.arange(4, device=device)[rows]})
    assert torch.equal(buffer["x"][buffer["y"].argsort()], x)


def test_keys_do_not_depend_on_the_layout_in_memory():
    x = torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = {"x": word_weights("x", x)}
    keys = content_keys({"x": x}, weights, 0)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), x.flatten()])[1:].view(6, 3, 4, 4)  # not aligned
    for same in (
        x.contiguous(memory_format=torch.channels_last),
        x.transpose(2, 3).contiguous().transpose(2, 3),
        shifted,
    ):
        assert torch.equal(content_keys({"x": same}, weights, 0), keys)
    assert words(x).shape == (6, 12)


def test_keys_tell_signs_and_exchanged_values_apart():
    signs = torch.tensor([[(i >> bit & 1) * 2.0 - 1 for bit in range(12)] for i in range(4096)])
    for column in (signs, signs.double(), signs.bfloat16()):
        assert len(content_keys({"x": column}, {"x": word_weights("x", column)}, 0).unique()) == 4096


def test_a_key_is_the_same_on_every_machine():
    x, y = torch.tensor([[0.5, -2.0]]), torch.tensor([7])
    weights = {"x": word_weights("x", x), "y": word_weights("y", y)}
    expected = python_key({"x": struct.pack("<ff", 0.5, -2.0), "y": struct.pack("<q", 7)}, salt=11)
    assert content_keys({"x": x, "y": y}, weights, 11).tolist() == [expected] == [2380268438846811725]


def test_logits_do_not_make_an_example_new():
    buffer = Buffer(8, policy="distinct")
    for epoch in range(3):
        buffer.add({"x": torch.arange(4.0), "y": torch.arange(4), "logits": torch.full((4, 2), float(epoch))})
    assert sorted(buffer["x"].tolist()) == [0.0, 1.0, 2.0, 3.0]
    assert not buffer["logits"].any()  # of the first time


def test_inputs_that_are_mappings_and_other_columns_have_keys():
    buffer = Buffer(8, policy="distinct")
    for _ in range(2):
        buffer.add({"x.ids": torch.tensor([[1, 2], [1, 3]]), "x.mask": torch.ones(2, 2), "y": torch.zeros(2, 4)})
    assert len(buffer) == 2
    buffer = Buffer(8, policy="distinct")
    for _ in range(2):
        buffer.add({"a": torch.tensor([1, 2, 3])})
    assert len(buffer) == 3


def test_a_batch_may_change_after_it_was_added():
    buffer, x = Buffer(8, policy="distinct"), torch.ones(2, 3)
    buffer.add({"x": x, "y": torch.tensor([0, 1])})
    x.zero_()
    assert buffer["x"].tolist() == [[1.0] * 3] * 2


@pytest.fixture
def without_arrays(monkeypatch):
    """Let batches wait as on a GPU, where NumPy cannot write."""
    monkeypatch.setattr("forgetless.memory.stage._is_for_numpy", lambda rows: False)


@pytest.mark.usefixtures("without_arrays")
def test_the_way_of_a_gpu_does_not_synchronise_when_full():
    buffer = on_device(5, {"x": torch.rand(1, 2), "y": torch.zeros(1, dtype=torch.int64)})
    buffer.add({"x": torch.rand(6, 2), "y": torch.zeros(6, dtype=torch.int64)})
    assert len(buffer) == 5
    with detect_syncs() as syncs:
        for _ in range(10):
            buffer.add({"x": torch.rand(4, 2), "y": torch.zeros(4, dtype=torch.int64)})
        buffer.draw(3)
        buffer.draw(3, spare_held_out=True)
        buffer.period += 1
        buffer.held_out()
        assert not syncs


@pytest.mark.usefixtures("without_arrays")
def test_the_length_is_read_once_after_each_change():
    buffer = on_device(50, EXAMPLE)
    with detect_syncs() as syncs:
        offer(buffer, [(1, 0), (2, 1), (1, 0)])
        assert not syncs
        assert [len(buffer), len(buffer)] == [2, 2]
        assert len(syncs) == 1


def test_writes_between_length_and_advance_do_not_synchronise():
    buffer = on_device(50, EXAMPLE)  # a captured step asks for the length, draws and writes
    buffer.write({"x": torch.arange(3.0), "y": torch.arange(3)})
    buffer.advance(3)
    assert len(buffer) == 3
    with detect_syncs() as syncs:
        buffer.draw(2)
        buffer.write({"x": torch.arange(4.0), "y": torch.arange(4)})
        assert len(buffer) == 3
    assert not syncs
    buffer.advance(4)
    assert len(buffer) == 4


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(streams, min_size=1, max_size=3),
    st.lists(streams, min_size=1, max_size=2),
    st.booleans(),
)
def test_a_restored_buffer_continues_alike(capacity, before, after, gpu):
    def make(seed):
        return on_device(capacity, EXAMPLE, seed=seed) if gpu else Buffer(capacity, policy="distinct", seed=seed)

    straight, resumed = make(1), make(2)
    for period, entries in enumerate(before):
        straight.period = period
        offer(straight, entries)
    state = straight.state_dict()
    resumed.load_state_dict(state)
    if gpu:
        resumed._sampler._host = None
    assert (resumed.seen, resumed.period) == (straight.seen, straight.period)
    for entries in after:
        for buffer in (straight, resumed):
            offer(buffer, entries)
    assert straight["x"].tolist() == resumed["x"].tolist()
    assert straight.draw(3)["x"].tolist() == resumed.draw(3)["x"].tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), streams, streams)
def test_a_smaller_buffer_keeps_what_it_would_have_held(large, small, before, after):
    large = max(large, small)
    first, second, expected = (Buffer(size, policy="distinct") for size in (large, small, small))
    offer(first, before)
    second.load_state_dict(first.state_dict())
    for buffer in (second, expected):
        offer(buffer, after) if buffer is second else offer(buffer, before + after)
    assert sorted(second["x"].tolist()) == sorted(expected["x"].tolist())


def test_a_larger_buffer_keeps_all():
    small = Buffer(4, policy="distinct")
    offer(small, [(i, 0) for i in range(20)])
    large = Buffer(10, policy="distinct")
    large.load_state_dict(small.state_dict())
    assert large["x"].tolist() == small["x"].tolist()
    offer(large, [(i, 0) for i in range(100, 120)])
    assert len(large) == 10


@pytest.mark.parametrize("policy", ["reservoir", "balanced"])
def test_examples_of_other_policies_are_taken_over(policy):
    other = Buffer(10, policy=policy)
    other.add({"x": torch.arange(30) % 7, "y": torch.zeros(30, dtype=torch.int64)})
    buffer = Buffer(20, policy="distinct")
    buffer.load_state_dict(other.state_dict())
    assert sorted(buffer["x"].tolist()) == sorted(set(other["x"].tolist()))
    assert buffer.seen == 30


@pytest.mark.parametrize("policy", ["reservoir", "balanced", "distinct"])
@pytest.mark.parametrize("held", [2, 7, 8, 9, 50])
def test_repairs_spare_every_eighth_slot(policy, held, device):
    buffer = Buffer(50, policy=policy, device=device)
    buffer.add({"x": torch.arange(held, device=device), "y": torch.zeros(held, dtype=torch.int64, device=device)})
    slots = buffer["x"].tolist()
    assert buffer.held_out()["x"].tolist() == slots[::8]
    drawn = buffer.draw(100, spare_held_out=True)["x"].tolist()
    assert sorted(drawn) == sorted(set(slots) - set(slots[::8]))
    assert len(buffer.draw(1, spare_held_out=True)["x"]) == 1


def test_an_example_alone_is_held_out():
    buffer = Buffer(5)
    buffer.add({"x": torch.arange(1)})
    with pytest.raises(ValueError, match="the buffer holds 1 example, which is held out; it must hold at least 2"):
        buffer.draw(1, spare_held_out=True)


def test_replace_puts_distinct_rows_in_place_of_all():
    buffer = Buffer(4, policy="distinct")
    offer(buffer, [(9, 0)])
    buffer.replace({"x": torch.tensor([1.0, 2.0, 1.0]), "y": torch.tensor([0, 0, 0])})
    assert (sorted(buffer["x"].tolist()), buffer.seen) == ([1.0, 2.0], 3)
    assert isinstance(buffer._sampler, Sketch)


def test_a_copy_of_a_buffer_takes_batches_of_its_own():
    buffer = Buffer(64, policy="distinct")
    buffer.add({"x": torch.rand(4, 2), "y": torch.arange(4)})
    other = copy.deepcopy(buffer)
    other.add({"x": torch.rand(4, 2), "y": torch.arange(4, 8)})
    assert other["y"].tolist() == [*range(8)]
    assert buffer["y"].tolist() == [*range(4)]
