import math
from itertools import chain
from types import SimpleNamespace

import torch

from forgetless.compute.engine import Engine
from forgetless.data.stream import Split
from forgetless.methods.loader import Loader, batch_sizes

SPLIT = Split(torch.arange(11).reshape(-1, 1, 1, 1).to(torch.uint8), torch.arange(11))


def epoch(loader):
    found = []
    loader.shuffle()
    for size in loader.sizes:
        loader.stage(size)
        x, y = loader.take(size)
        assert torch.equal(x.flatten().long(), y)
        found.append(y.tolist())
    return found


def test_each_epoch_is_a_new_order_of_all_examples(device):
    engine = Engine(device)
    loader = Loader(SPLIT.to(device), 4, engine, engine.generator(0))
    first, second = epoch(loader), epoch(loader)
    assert [len(batch) for batch in first] == [4, 4, 3]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(11))
    assert first != second


def test_the_remainder_is_a_batch_unless_too_small():
    assert batch_sizes(11, 4) == [4, 4, 3]
    assert batch_sizes(9, 4) == [4, 4, 1]
    assert batch_sizes(9, 4, smallest=2) == [4, 4]
    assert batch_sizes(10, 4, smallest=2) == [4, 4, 2]
    assert batch_sizes(8, 4, smallest=2) == [4, 4]
    assert batch_sizes(1, 4, smallest=2) == [1]  # the only batch


def test_the_left_out_example_differs_between_epochs(device):
    engine = Engine(device)
    for images in (True, False):
        loader = Loader(SPLIT.to(device, images=images), 5, engine, engine.generator(0), smallest=2)
        seen = [epoch(loader) for _ in range(20)]
        loader.close()
        assert all([len(batch) for batch in batches] == [5, 5] for batches in seen)
        assert {row for batches in seen for batch in batches for row in batch} == set(range(11))


def test_images_on_the_cpu_come_in_the_same_order(device):
    orders = []
    for images in (True, False):
        engine = Engine(device)
        loader = Loader(SPLIT.to(device, images=images), 2, engine, engine.generator(0))
        orders.append([epoch(loader) for _ in range(3)])
        loader.close()
    assert orders[0] == orders[1]


def test_a_state_at_an_epochs_end_prefetches_nothing():
    split = Split(torch.arange(6)[:, None], torch.zeros(6, dtype=torch.int64))
    loader = Loader(split, 2, Engine(), torch.Generator())
    begun = []
    loader._prefetcher = SimpleNamespace(begin=begun.append)
    order = torch.randperm(6)
    loader.load_state_dict({"order": order, "at": 6, "losses": torch.zeros(7)})
    assert begun == []
    loader.load_state_dict({"order": order, "at": 4, "losses": torch.zeros(7)})
    assert [batch.tolist() for batch in begun[0]] == [order[4:].tolist()]


def test_losses_are_averaged_and_the_first_bad_batch_named():
    split = Split(torch.arange(5)[:, None], torch.zeros(5, dtype=torch.int64))
    loader = Loader(split, 2, Engine(), torch.Generator())
    loader.shuffle()
    for size, loss in zip(loader.sizes, (1.0, 2.0, 6.0), strict=True):
        loader.stage(size)
        loader.take(size)
        loader.record_loss(torch.tensor(loss))
    assert loader.mean_loss() == 3.0
    loader.shuffle()
    for size, loss in zip(loader.sizes, (1.0, math.nan, math.nan), strict=True):
        loader.stage(size)
        loader.record_loss(torch.tensor(loss))
    assert loader.first_bad_batch() == 1
