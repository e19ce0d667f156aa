"""The nine benchmark streams, prepared as by the DER authors.

Each function takes the data folder (default: ``readers.files.data_folder()``) and ``order``, the classes in the order
of the stream or the seed of a random order.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forgetless.data.builders import rotated, split_by_class, split_by_domain
from forgetless.data.readers import cifar, digits, medmnist, mnist, pacs, tinyimagenet
from forgetless.data.readers.files import data_folder
from forgetless.data.stream import Split, Stream

Order = Sequence[int] | int | None


def seq_digits(root: Path | None = None, order: Order = None) -> Stream:
    """Return scikit-learn's digits as 5 tasks of 2 classes. Needs no download."""
    return split_by_class("seq-digits", *digits.read(), sizes=[2] * 5, order=order)


def view_digits() -> Stream:
    """Return scikit-learn's digits as 4 tasks: upright, as negatives, turned by 90°, and both. Needs no download."""

    def views(split: Split) -> list[Split]:
        turned = split.x.rot90(1, (2, 3))
        return [Split(x, split.y) for x in (split.x, 255 - split.x, turned, 255 - turned)]

    train, test = digits.read()
    return split_by_domain("view-digits", list(zip(views(train), views(test), strict=True)), classes=10)


def large_digits(order: Order = None) -> Stream:
    """Return the digits at 32×32, every pixel repeated 4×4 times, for networks that need larger images."""
    large = seq_digits(order=order).map(lambda s: Split(s.x.repeat_interleave(4, 2).repeat_interleave(4, 3), s.y))
    return replace(large, name="large-digits")


def seq_mnist(root: Path | None = None, order: Order = None) -> Stream:
    """Return MNIST as 5 tasks of 2 classes."""
    return split_by_class("seq-mnist", *mnist.read(root or data_folder()), sizes=[2] * 5, order=order)


def rot_mnist(root: Path | None = None, order: Order = None) -> Stream:
    """Return MNIST as 20 tasks with one random rotation each; ``order`` is the seed of the angles (default: 0)."""
    if order is not None and not isinstance(order, int):
        raise ValueError(f"order is {order}; rot-mnist has no class order, so it must be the seed of the angles")
    return rotated("rot-mnist", *mnist.read(root or data_folder()), tasks=20, classes=10, seed=order or 0)


def seq_organamnist(root: Path | None = None, order: Order = None) -> Stream:
    """Return OrganAMNIST as 4 tasks of 3, 3, 3 and 2 classes."""
    data = medmnist.read(root or data_folder(), "organamnist")
    return split_by_class("seq-organamnist", *data, sizes=[3, 3, 3, 2], order=order)


def seq_pathmnist(root: Path | None = None, order: Order = None) -> Stream:
    """Return PathMNIST as 4 tasks of 3, 2, 2 and 2 classes."""
    data = medmnist.read(root or data_folder(), "pathmnist")
    mean, std = (0.7405, 0.5330, 0.7058), (0.1237, 0.1768, 0.1244)
    # No image is black anywhere, so black edges would dominate batch norm's statistics: crops see mirrored edges.
    return split_by_class(
        "seq-pathmnist", *data, sizes=[3, 2, 2, 2], order=order, mean=mean, std=std, pad=4, flip=True, mirror=True
    )


def seq_cifar10(root: Path | None = None, order: Order = None) -> Stream:
    """Return CIFAR-10 as 5 tasks of 2 classes."""
    data = cifar.read(root or data_folder())
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
    return split_by_class("seq-cifar10", *data, sizes=[2] * 5, order=order, mean=mean, std=std, pad=4, flip=True)


def seq_tinyimagenet(root: Path | None = None, order: Order = None) -> Stream:
    """Return Tiny-ImageNet as 10 tasks of 20 classes."""
    data = tinyimagenet.read(root or data_folder())
    mean, std = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
    return split_by_class("seq-tinyimagenet", *data, sizes=[20] * 10, order=order, mean=mean, std=std, pad=4, flip=True)


def seq_pacs(root: Path | None = None, order: Order = None) -> Stream:
    """Return PACS as 4 domains: sketch, cartoon, art painting, photo; ``order`` arranges the domains 0 to 3."""
    domains = list(pacs.read(root or data_folder()).values())
    if order is not None:
        if isinstance(order, int) or sorted(order) != [0, 1, 2, 3]:
            raise ValueError(f"order is {order}; seq-pacs expects each of the domains 0 to 3 once")
        domains = [domains[index] for index in order]
    mean, std = (0.7639, 0.7442, 0.7155), (0.3050, 0.3146, 0.3433)
    return split_by_domain("seq-pacs", domains, classes=7, mean=mean, std=std, flip=True)
