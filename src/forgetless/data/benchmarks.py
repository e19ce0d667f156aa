"""The streams of the paper, each a function of the data folder and a class order; prepared as by the DER authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forgetless.data.readers import cifar, digits, medmnist, mnist, pacs, tinyimagenet
from forgetless.data.readers.files import root as data_root
from forgetless.data.stream import Split, Stream, rotated, split_by_class, split_by_domain

Order = Sequence[int] | int | None


def seq_digits(root: Path | None = None, order: Order = None) -> Stream:
    return split_by_class("seq-digits", *digits.read(), sizes=[2] * 5, order=order)


def large_digits(order: Order = None) -> Stream:
    """The digits at 32×32, every pixel four times as wide and high, for networks that need larger images."""
    small = seq_digits(order=order)

    def enlarge(split: Split) -> Split:
        return Split(split.x.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3), split.y)

    tasks = tuple(replace(task, train=enlarge(task.train), test=enlarge(task.test)) for task in small.tasks)
    return replace(small, name="large-digits", tasks=tasks)


def seq_mnist(root: Path | None = None, order: Order = None) -> Stream:
    return split_by_class("seq-mnist", *mnist.read(root or data_root()), sizes=[2] * 5, order=order)


def rot_mnist(root: Path | None = None, order: Order = None) -> Stream:
    """20 tasks; ``order`` is the seed of the angles (None: 0)."""
    if order is not None and not isinstance(order, int):
        raise ValueError(
            f"order is {order}; rot-mnist has the same classes in every task and takes a seed for the angles"
        )
    return rotated("rot-mnist", *mnist.read(root or data_root()), tasks=20, classes=10, seed=order or 0)


def seq_organamnist(root: Path | None = None, order: Order = None) -> Stream:
    data = medmnist.read(root or data_root(), "organamnist")
    return split_by_class("seq-organamnist", *data, sizes=[3, 3, 3, 2], order=order)


def seq_pathmnist(root: Path | None = None, order: Order = None) -> Stream:
    return split_by_class(
        "seq-pathmnist",
        *medmnist.read(root or data_root(), "pathmnist"),
        sizes=[3, 2, 2, 2],
        order=order,
        mean=(0.7405, 0.5330, 0.7058),
        std=(0.1237, 0.1768, 0.1244),
        pad=4,
        flip=True,
        mirror=True,  # black, which no image has, would set the statistics of batch norm
    )


def seq_cifar10(root: Path | None = None, order: Order = None) -> Stream:
    return split_by_class(
        "seq-cifar10",
        *cifar.read(root or data_root()),
        sizes=[2] * 5,
        order=order,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
        pad=4,
        flip=True,
    )


def seq_tinyimagenet(root: Path | None = None, order: Order = None) -> Stream:
    return split_by_class(
        "seq-tinyimagenet",
        *tinyimagenet.read(root or data_root()),
        sizes=[20] * 10,
        order=order,
        mean=(0.4802, 0.4480, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        pad=4,
        flip=True,
    )


def seq_pacs(root: Path | None = None, order: Order = None) -> Stream:
    """Sketch, cartoon, art painting, photo; or the domains in another ``order`` of 0 to 3. Flipped to train."""
    domains = list(pacs.read(root or data_root()).values())
    if order is not None:
        if isinstance(order, int) or sorted(order) != [0, 1, 2, 3]:
            raise ValueError(f"order is {order}; seq-pacs takes the four domains 0 to 3, each once")
        domains = [domains[i] for i in order]
    return split_by_domain(
        "seq-pacs", domains, classes=7, mean=(0.7639, 0.7442, 0.7155), std=(0.3050, 0.3146, 0.3433), flip=True
    )
