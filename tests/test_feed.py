from itertools import chain

import torch

from forgetless.engine import Engine
from forgetless.feed import Feed
from forgetless.stream import Split

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


def test_images_on_the_host_come_in_the_same_order(device):
    orders = []
    for images in (True, False):
        engine = Engine(device)
        feed = Feed(SPLIT.to(device, images=images), 2, engine, engine.generator(0))
        orders.append([epoch(feed) for _ in range(3)])
        feed.close()
    assert orders[0] == orders[1]
