"""Build streams from tensors, data sets, image folders and domains."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forgetless.config.fields import SEED, check_value
from forgetless.data.holdout import stratified
from forgetless.data.readers.images import read_folder
from forgetless.data.stream import Split, Stream, Task


def from_tensors(
    x: Any, y: Any, sizes: Sequence[int], *, test: float = 0.2, name: str = "tensors", seed: int = 0, **prepare: Any
) -> Stream:
    """Return a class-incremental stream built from tensors or arrays.

    Examples:
        >>> import torch
        >>> from forgetless.data.builders import from_tensors
        >>> stream = from_tensors(torch.rand(40, 1, 8, 8), torch.arange(40) % 4, sizes=[2, 2])
        >>> [task.classes for task in stream.tasks]
        [(0, 1), (2, 3)]

    Args:
        x: Images (examples, channels, height, width), grey images (examples, height, width), or features.
        y: The class of each example, 0, 1, ….
        sizes: The number of classes of each task.
        test: The share of every class that becomes the test set.
        name: The name of the stream.
        seed: The seed of the random test set.
        **prepare: ``order`` of ``split_by_class``, and the arguments of ``Stream`` that prepare images.

    Returns:
        A stream whose tasks have ``sizes`` classes.
    """
    if not 0 < test < 1:
        raise ValueError(f"test is {test}; it must be between 0 and 1")
    if isinstance(sizes, int):
        raise ValueError(f"sizes is {sizes}; it must be a list with the number of classes of each task")
    x = torch.as_tensor(x)
    examples = Split(x[:, None] if x.ndim == 3 else x, _class_labels(y, len(x)))
    held_out = stratified(examples.y, test, torch.Generator().manual_seed(seed))
    return split_by_class(name, examples.where(~held_out), examples.where(held_out), sizes, **prepare)


def from_dataset(dataset: Any, sizes: Sequence[int], **settings: Any) -> Stream:
    """Return a class-incremental stream built from an indexable data set of (image tensor, label).

    Args:
        dataset: A data set of torchvision, or any object with ``len`` and ``[index]``.
        sizes: The number of classes of each task.
        **settings: The keyword arguments of ``from_tensors``. The default name is that of the class.
    """
    items = [dataset[index] for index in range(len(dataset))]
    if not items:
        raise ValueError(f"dataset is an empty {type(dataset).__name__}; it must hold examples of each class")
    try:
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"dataset returns examples that cannot be stacked into a tensor, the first a {type(items[0][0]).__name__}: "
            f"{error}; it must return (image, label) with tensors of equal shape (torchvision: transform=ToTensor())"
        ) from None
    y = [label.item() if hasattr(label, "item") else label for _, label, *_ in items]  # MedMNIST's are arrays
    return from_tensors(x, y, sizes, **{"name": type(dataset).__name__, **settings})


def from_folder(folder: str | Path, sizes: Sequence[int], *, size: int | None = None, **settings: Any) -> Stream:
    """Return a class-incremental stream built from ``folder/<class>/<image>``; needs pillow.

    Args:
        folder: A folder with one sub-folder per class. Classes are numbered in alphabetical order.
        sizes: The number of classes of each task.
        size: Resize all images to ``size`` × ``size``. Without it all images must have the same size.
        **settings: The keyword arguments of ``from_tensors``. The default name is that of the folder.
    """
    x, y = read_folder(Path(folder), size)
    return from_tensors(x, y, sizes, **{"name": Path(folder).name, **settings})


def split_by_class(
    name: str, train: Split, test: Split, sizes: Sequence[int], order: Sequence[int] | int | None = None, **prepare: Any
) -> Stream:
    """Return a class-incremental stream. Labels are renumbered so that the first task has the labels 0, 1, ….

    Args:
        name: The name of the stream.
        train: All training examples.
        test: All test examples.
        sizes: The number of classes of each task.
        order: The classes in the order of the stream, or the seed of a random order. Default: 0, 1, 2, ….
        **prepare: The arguments of ``Stream`` that prepare images.
    """
    classes = sum(sizes)
    if order is None:
        order = range(classes)
    elif isinstance(order, int):
        check_value("order", order, int, **SEED)
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(order)).tolist()
    if sorted(order) != list(range(classes)):
        raise ValueError(f"order is {list(order)}; it must name each of the classes 0 to {classes - 1} once")
    labels = torch.cat([train.y, test.y])
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"sizes {list(sizes)} add up to {classes} classes, but the labels go from {low} to {high}")
    rank = torch.tensor(list(order)).argsort()  # the new label of each class
    train, test = Split(train.x, rank[train.y]), Split(test.x, rank[test.y])
    tasks, start = [], 0
    for size in sizes:
        learned, tested = (split.where((split.y >= start) & (split.y < start + size)) for split in (train, test))
        tasks.append(Task(learned, tested, tuple(range(start, start + size))))
        start += size
    return Stream(name, tuple(tasks), classes, "class", **prepare)


def split_by_domain(name: str, domains: Sequence[tuple[Split, Split]], classes: int, **prepare: Any) -> Stream:
    """Return a stream with one task for each (train, test) of ``domains``. All tasks have the same classes."""
    tasks = tuple(Task(train, test, tuple(range(classes))) for train, test in domains)
    return Stream(name, tasks, classes, "domain", **prepare)


def rotated(name: str, train: Split, test: Split, tasks: int, classes: int, seed: int = 0, **prepare: Any) -> Stream:
    """Return a stream of the same examples in every task, rotated by one random angle in [0°, 180°) per task."""
    angles = (180 * torch.rand(tasks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).tolist()
    domains = [(Split(rotate(train.x, angle), train.y), Split(rotate(test.x, angle), test.y)) for angle in angles]
    return split_by_domain(name, domains, classes, **prepare)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Return images (…, height, width) rotated counter-clockwise; nearest pixel, and zeros outside the image."""
    height, width = x.shape[-2:]
    angle = math.radians(degrees)
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2
    source_column = (columns * math.cos(angle) - rows * math.sin(angle) + (width - 1) / 2).round().long()
    source_row = (columns * math.sin(angle) + rows * math.cos(angle) + (height - 1) / 2).round().long()
    inside = (source_row >= 0) & (source_row < height) & (source_column >= 0) & (source_column < width)
    pixel = source_row.clamp(0, height - 1) * width + source_column.clamp(0, width - 1)
    turned = x.flatten(-2)[..., pixel.flatten().to(x.device)].reshape(x.shape)
    return turned * inside.to(x.device, x.dtype)


def _class_labels(y: Any, examples: int) -> Tensor:
    """Return labels as int64, or raise ``ValueError`` if they do not number classes."""
    try:
        labels = torch.as_tensor(y)
    except (TypeError, ValueError):
        numbered = "numpy.unique(y, return_inverse=True)[1] numbers them"
        raise ValueError(f"y holds {type(y[0]).__name__}; it must hold class numbers 0, 1, …; {numbered}") from None
    if labels.ndim != 1:
        raise ValueError(f"y has shape {tuple(labels.shape)}; it must hold one class per example, shape ({examples},)")
    whole = labels.to(torch.int64)
    if not torch.equal(whole.to(labels.dtype), labels):
        raise ValueError("y holds fractions; it must hold class numbers 0, 1, …")
    return whole
