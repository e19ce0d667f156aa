import math
from itertools import chain
from types import SimpleNamespace

import torch

from forgetless.compute.engine import Engine
from forgetless.data.stream import Split
from forgetless.methods.loader import Feed, batch_sizes

SPLIT = Split(torch.arange(11).reshape(-1, 1, 1, 1).to(torch.uint8), torch.arange(11))


def epoch(feed):
    found = []
    for size in feed.shuffle():
        feed.stage(size)
        x, y = feed.take(size)
        assert torch.equal(x.flatten().long(), y)
        found.append(y.tolist())
    return found


def test_every_example_comes_once_an_epoch_in_an_order_of_its_own(device):
    engine = Engine(device)
    feed = Feed(SPLIT.to(device), 4, engine, engine.generator(0))
    first, second = epoch(feed), epoch(feed)
    assert [len(batch) for batch in first] == [4, 4, 3]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(11))
    assert first != second


def test_what_remains_is_a_batch_unless_it_is_too_small():
    assert batch_sizes(11, 4) == [4, 4, 3]
    assert batch_sizes(9, 4) == [4, 4, 1]
    assert batch_sizes(9, 4, least=2) == [4, 4]
    assert batch_sizes(10, 4, least=2) == [4, 4, 2]
    assert batch_sizes(8, 4, least=2) == [4, 4]
    assert batch_sizes(1, 4, least=2) == [1]  # there is nothing else


def test_another_example_is_left_out_each_epoch(device):
    engine = Engine(device)
    for images in (True, False):
        feed = Feed(SPLIT.to(device, images=images), 5, engine, engine.generator(0), least=2)
        seen = [epoch(feed) for _ in range(20)]
        feed.close()
        assert all([len(batch) for batch in batches] == [5, 5] for batches in seen)
        assert {row for batches in seen for batch in batches for row in batch} == set(range(11))


def test_images_on_the_host_come_in_the_same_order(device):
    orders = []
    for images in (True, False):
        engine = Engine(device)
        feed = Feed(SPLIT.to(device, images=images), 2, engine, engine.generator(0))
        orders.append([epoch(feed) for _ in range(3)])
        feed.close()
    assert orders[0] == orders[1]


def test_a_state_at_the_end_of_an_epoch_queues_nothing_on_the_host():
    split = Split(torch.arange(6)[:, None], torch.zeros(6, dtype=torch.int64))
    feed = Feed(split, 2, Engine(), torch.Generator())
    begun = []
    feed._host = SimpleNamespace(begin=begun.append)
    order = torch.randperm(6)
    feed.load_state_dict({"order": order, "at": 6, "losses": torch.zeros(7)})
    assert begun == []
    feed.load_state_dict({"order": order, "at": 4, "losses": torch.zeros(7)})
    assert [batch.tolist() for batch in begun[0]] == [order[4:].tolist()]


def test_the_losses_of_an_epoch_are_kept_where_their_batches_end():
    split = Split(torch.arange(5)[:, None], torch.zeros(5, dtype=torch.int64))
    feed = Feed(split, 2, Engine(), torch.Generator())
    for size, loss in zip(feed.shuffle(), (1.0, 2.0, 6.0), strict=True):
        feed.stage(size)
        feed.take(size)
        feed.note(torch.tensor(loss))
    assert feed.mean_loss() == 3.0
    feed.shuffle()
    for size, loss in zip(feed.sizes, (1.0, math.nan, math.nan), strict=True):
        feed.stage(size)
        feed.note(torch.tensor(loss))
    assert feed.first_bad() == 1
