import os
from pathlib import Path

import pytest
import torch

from forgetless.data import benchmarks
from forgetless.data.download import SOURCES

EXPECTED = {
    # function: (data set, tasks, classes per task, training images, test images, shape)
    "seq_mnist": ("mnist", 5, [2] * 5, 60_000, 10_000, (1, 28, 28)),
    "rot_mnist": ("mnist", 20, [10] * 20, 1_200_000, 200_000, (1, 28, 28)),
    "seq_organamnist": ("organamnist", 4, [3, 3, 3, 2], 34_561, 17_778, (1, 28, 28)),
    "seq_pathmnist": ("pathmnist", 4, [3, 2, 2, 2], 89_996, 7_180, (3, 28, 28)),
    "seq_cifar10": ("cifar10", 5, [2] * 5, 50_000, 10_000, (3, 32, 32)),
    "seq_tinyimagenet": ("tinyimagenet", 10, [20] * 10, 100_000, 10_000, (3, 64, 64)),
    "seq_pacs": ("pacs", 4, [7] * 4, 7_993, 1_998, (3, 224, 224)),
}


def test_seq_digits_has_five_tasks_offline():
    stream = benchmarks.seq_digits()
    assert [task.classes for task in stream.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert sum(len(task.train) for task in stream.tasks) == 1437
    assert sum(len(task.test) for task in stream.tasks) == 360
    assert stream.shape == (1, 8, 8)
    assert stream.tasks[0].train.x.max() == 255


def test_view_digits_show_the_same_digits_in_four_views():
    stream = benchmarks.view_digits()
    upright, negative, turned, both = (task.train for task in stream.tasks)
    assert stream.scenario == "domain"
    assert [len(task.train) for task in stream.tasks] == [1437] * 4
    assert torch.equal(negative.x, 255 - upright.x)
    assert torch.equal(turned.x[..., 0, :], upright.x[..., :, 7])  # the right column becomes the top row
    assert torch.equal(both.x, 255 - turned.x)
    assert all(torch.equal(task.train.y, upright.y) for task in stream.tasks)


def test_seq_digits_in_another_order():
    stream = benchmarks.seq_digits(order=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    plain = benchmarks.seq_digits()
    assert len(stream.tasks[0].train) == len(plain.tasks[4].train)


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA is not set")
@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_real_streams_match_the_paper(name):
    data, tasks, classes, train, test, shape = EXPECTED[name]
    folder = Path(os.environ["FORGETLESS_DATA"])
    if not any((folder / path).exists() for path in [*SOURCES[data].contents, *SOURCES[data].folders]):
        pytest.skip(f"{data} is not in {folder}")
    stream = getattr(benchmarks, name)()
    assert len(stream.tasks) == tasks
    assert [len(task.classes) for task in stream.tasks] == classes
    assert sum(len(task.train) for task in stream.tasks) == train
    assert sum(len(task.test) for task in stream.tasks) == test
    assert stream.shape == shape
    assert stream.tasks[0].train.x.dtype == torch.uint8
    assert stream.scenario == ("domain" if name in ("rot_mnist", "seq_pacs") else "class")


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA is not set")
@pytest.mark.parametrize("name", ["seq_pathmnist", "seq_cifar10", "seq_tinyimagenet", "seq_pacs"])
def test_colour_streams_declare_their_mean_and_std(name):
    data, folder = EXPECTED[name][0], Path(os.environ["FORGETLESS_DATA"])
    if not any((folder / path).exists() for path in [*SOURCES[data].contents, *SOURCES[data].folders]):
        pytest.skip(f"{data} is not in {folder}")
    stream = getattr(benchmarks, name)()
    counts = torch.zeros(3, 256, dtype=torch.float64)
    for task in stream.tasks:
        for channel, values in enumerate(task.train.x.unbind(1)):
            counts[channel] += torch.bincount(values.flatten().int(), minlength=256)
    shares, levels = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    assert stream.mean == pytest.approx(mean.tolist(), abs=1e-3)
    assert stream.std == pytest.approx((shares @ levels**2 - mean**2).sqrt().tolist(), abs=1e-3)
    black = (-mean / (shares @ levels**2 - mean**2).sqrt()).min()  # what crops of bright images must not add
    assert stream.mirror == (stream.pad > 0 and bool(black < -4))


def test_rot_mnist_takes_no_class_order():
    with pytest.raises(ValueError, match="it must be the seed of the angles"):
        benchmarks.rot_mnist(order=[1, 2])


def test_large_digits_repeat_every_pixel_sixteen_times():
    small, large = benchmarks.seq_digits(), benchmarks.large_digits()
    x = large.tasks[2].train.x
    assert x.shape[1:] == (1, 32, 32)
    assert x[:, :, 1::4, 3::4].equal(small.tasks[2].train.x)
    assert large.tasks[2].test.y.equal(small.tasks[2].test.y)
