"""A stream of tasks: frozen values, images as they are on disk (uint8), labels as int64."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forgetless.config.checks import check_seed


@dataclass(frozen=True)
class Split:
    """Examples: ``x`` (count, channels, height, width), uint8 or float, and their labels ``y`` (count,)."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} examples and {len(self.y)} labels; there must be as many of both")
        if self.y.dtype != torch.int64:
            raise ValueError(f"labels have dtype {self.y.dtype}; they must be torch.int64")

    def __len__(self) -> int:
        return len(self.y)

    def of(self, rows: Tensor) -> Split:
        """Some of the examples, on the device of the labels."""
        x = self.x.index_select(0, rows.to(self.x.device))
        return Split(x.to(self.y.device), self.y.index_select(0, rows))

    def to(self, device: torch.device | str, *, images: bool = True) -> Split:
        """On another device; ``images=False``: only the labels."""
        return Split(self.x.to(device) if images else self.x, self.y.to(device))


@dataclass(frozen=True)
class Task:
    train: Split
    test: Split
    classes: tuple[int, ...]  # the labels that occur


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in order, and how images are prepared: scaled to [0, 1], then (x − mean) / std; crop, flip to train.

    ``scenario`` is ``class`` (tasks have classes of their own) or ``domain`` (the same classes, other images).
    """

    name: str
    tasks: tuple[Task, ...]
    classes: int
    scenario: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0  # by how much a random crop may lie over the edge; 0: no crop
    flip: bool = False
    mirror: bool = False  # what a crop finds over the edge is the image mirrored there; False: black

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"stream {self.name!r} has no tasks")
        if self.scenario not in ("class", "domain"):
            raise ValueError(f"stream {self.name!r}: scenario is {self.scenario!r}; it must be class or domain")
        if (self.pad or self.flip) and len(self.shape) != 3:
            said = f"pad is {self.pad} and flip {self.flip}, but an example has shape {self.shape}; they are for images"
            raise ValueError(f"stream {self.name!r}: {said}, (channels, height, width)")
        if bool(self.mean) != bool(self.std):
            raise ValueError(f"stream {self.name!r}: mean is {self.mean} and std is {self.std}; give both, or neither")
        channels = self.shape[0] if self.shape else 1
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1, channels):
                said = f"{name} is {values}; it must have a number for each of the {channels} channels, or one"
                raise ValueError(f"stream {self.name!r}: {said}")
        if not all(value > 0 for value in self.std):
            raise ValueError(f"stream {self.name!r}: std is {self.std}; it must be above 0")
        pixels = min(self.shape[-2:], default=0)
        if self.mirror and not 0 < self.pad < pixels:
            said = f"mirror is on and pad is {self.pad}; it must be 1 or more and below the images' {pixels} pixels"
            raise ValueError(f"stream {self.name!r}: {said}")
        for number, task in enumerate(self.tasks, start=1):
            for split, what in ((task.train, "training"), (task.test, "test")):
                if not len(split):
                    raise ValueError(f"stream {self.name!r}: task {number} has no {what} examples")
                first = self.tasks[0].train.x
                if split.x.shape[1:] != first.shape[1:] or split.x.dtype != first.dtype:
                    raise ValueError(
                        f"stream {self.name!r}: the {what} examples of task {number} are {split.x.dtype} of shape "
                        f"{tuple(split.x.shape[1:])}, the first are {first.dtype} of {self.shape}; all must be alike"
                    )
                low, high = int(split.y.min()), int(split.y.max())
                if low < 0 or high >= self.classes:
                    raise ValueError(
                        f"stream {self.name!r}: task {number} has labels from {low} to {high}; with {self.classes} "
                        f"classes they must be 0 to {self.classes - 1}"
                    )
            found = [set(split.y.unique().tolist()) for split in (task.train, task.test)]
            if missing := set(task.classes) - found[0]:
                raise ValueError(f"stream {self.name!r}: task {number} has no training example of class {min(missing)}")
            if foreign := (found[0] | found[1]) - set(task.classes):
                raise ValueError(
                    f"stream {self.name!r}: task {number} has examples of class {min(foreign)}, but its classes are "
                    f"{', '.join(map(str, task.classes))}"
                )

    @cached_property
    def checksum(self) -> str:
        """Checksum of the preparation, the shapes, the labels, and up to 1,000 images of each split."""
        prepared = (self.name, self.mean, self.std, self.pad, self.flip)
        checksum = zlib.crc32(str((*prepared, "mirror") if self.mirror else prepared).encode())
        for task in self.tasks:
            for split in (task.train, task.test):
                rows = torch.linspace(0, len(split) - 1, min(len(split), 1000)).long()
                images = split.x.index_select(0, rows.to(split.x.device)).cpu()
                checksum = zlib.crc32(str(tuple(split.x.shape)).encode(), checksum)
                for part in (split.y.cpu(), images):
                    checksum = zlib.crc32(part.contiguous().reshape(-1).view(torch.uint8).numpy().data, checksum)
        return f"{checksum:08x}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.tasks[0].train.x.shape[1:])

    @property
    def bytes(self) -> int:
        """What the images take."""
        return sum(split.x.nbytes for task in self.tasks for split in (task.train, task.test))

    def to(self, device: torch.device | str, *, images: bool = True) -> Stream:
        """On another device; ``images=False``: only the labels, for images that do not fit there."""
        tasks = tuple(
            Task(task.train.to(device, images=images), task.test.to(device, images=images), task.classes)
            for task in self.tasks
        )
        return replace(self, tasks=tasks)

    def joint(self) -> Stream:
        """The training examples of all tasks in the first, for the upper bound; the tests stay apart."""
        train = Split(torch.cat([t.train.x for t in self.tasks]), torch.cat([t.train.y for t in self.tasks]))
        classes = tuple(sorted({c for task in self.tasks for c in task.classes}))
        first = Task(train, self.tasks[0].test, classes)
        return replace(self, tasks=(first, *self.tasks[1:]))

    def validation(self, fraction: float = 0.1, seed: int = 0) -> Stream:
        """Hold out this share of each class of each task's training examples, and test on them, not on the test set.

        Tasks with the same labels in the same order hold out the same rows: they may be the same images, turned say.
        Where other tasks have classes in common, an example that recurs is held out of all of them or of none.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction is {fraction}; it must be between 0 and 1")
        generator = torch.Generator().manual_seed(seed)
        known: list[tuple[Tensor, Tensor]] = []  # labels of a task, and which of its rows are held out
        decided: dict[bytes, list[bool]] = {}  # by content, whether each copy of it is held out
        held_out = []
        for task in self.tasks:
            held = next((held for labels, held in known if torch.equal(labels, task.train.y)), None)
            if held is None:
                held = stratified(task.train.y, fraction, generator)
                if any(set(task.classes) & set(other.classes) for other in self.tasks if other is not task):
                    _decide(task.train.x, held, decided)
                known.append((task.train.y, held))
            held_out.append(held)
        tasks = tuple(
            Task(task.train.of((~held).nonzero()[:, 0]), task.train.of(held.nonzero()[:, 0]), task.classes)
            for task, held in zip(self.tasks, held_out, strict=True)
        )
        return replace(self, name=f"{self.name} (validation)", tasks=tasks)


def split_by_class(
    name: str,
    train: Split,
    test: Split,
    sizes: Sequence[int],
    order: Sequence[int] | int | None = None,
    **prepare: Any,
) -> Stream:
    """Tasks of ``sizes`` classes each. ``order``: the classes in order, or a seed for a random one (None: 0, 1, 2, …).

    Labels are renumbered by that order, so that task 1 has the labels 0, 1, … and so on.
    """
    classes = sum(sizes)
    if order is None:
        order = range(classes)
    elif isinstance(order, int):
        check_seed(order, "order")
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(order)).tolist()
    if sorted(order) != list(range(classes)):
        raise ValueError(f"order is {list(order)}; it must name each of the classes 0 to {classes - 1} once")
    low = min(int(train.y.min()), int(test.y.min()))
    top = max(int(train.y.max()), int(test.y.max()))
    if low < 0 or top >= classes:
        raise ValueError(f"sizes {list(sizes)} make {classes} classes, but the labels go from {low} to {top}")
    rank = torch.empty(classes, dtype=torch.int64)
    rank[torch.tensor(list(order))] = torch.arange(classes)
    tasks, start = [], 0
    for size in sizes:
        parts = []
        for split in (train, test):
            y = rank[split.y]
            rows = ((y >= start) & (y < start + size)).nonzero()[:, 0]
            parts.append(Split(split.x[rows], y[rows]))
        tasks.append(Task(parts[0], parts[1], tuple(range(start, start + size))))
        start += size
    return Stream(name, tuple(tasks), classes, "class", **prepare)


def split_by_domain(name: str, domains: Sequence[tuple[Split, Split]], classes: int, **prepare: Any) -> Stream:
    """One task for each (train, test), all with the same classes."""
    tasks = tuple(Task(train, test, tuple(range(classes))) for train, test in domains)
    return Stream(name, tasks, classes, "domain", **prepare)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Images (…, height, width) turned counter-clockwise about their centre, nearest pixel, zeros outside."""
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


def rotated(name: str, train: Split, test: Split, tasks: int, classes: int, seed: int = 0, **prepare: Any) -> Stream:
    """The same examples in every task, turned by one random angle in [0°, 180°) each."""
    angles = (180 * torch.rand(tasks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).tolist()
    domains = [tuple(Split(rotate(split.x, angle), split.y) for split in (train, test)) for angle in angles]
    return split_by_domain(name, [(first, second) for first, second in domains], classes, **prepare)


def from_tensors(
    x: Any,
    y: Any,
    sizes: Sequence[int],
    *,
    test: float = 0.2,
    name: str = "tensors",
    seed: int = 0,
    **prepare: Any,
) -> Stream:
    """A class-incremental stream from one's own tensors or arrays; a stratified share of ``test`` is the test set.

    ``x`` are images (examples, channels, height, width), or without the channels if there is one, or features.
    """
    if not 0 < test < 1:
        raise ValueError(f"test is {test}; it must be between 0 and 1")
    if isinstance(sizes, int) or not all(isinstance(size, Integral) for size in sizes):
        raise ValueError(f"sizes is {sizes}; it must be a list, the number of classes of each task")
    x, y = torch.as_tensor(x), _numbered(y)
    if y.ndim != 1:
        raise ValueError(f"y has shape {tuple(y.shape)}; it must hold the class of each example, shape ({len(x)},)")
    labels = y.to(torch.int64)
    if not torch.equal(labels.to(y.dtype), y):
        raise ValueError("y must hold classes, as whole numbers; it holds fractions")
    whole = Split(x[:, None] if x.ndim == 3 else x, labels)
    held = stratified(whole.y, test, torch.Generator().manual_seed(seed))
    train, rest = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
    return split_by_class(name, whole.of(train), whole.of(rest), sizes, **prepare)


def from_dataset(dataset: Any, sizes: Sequence[int], **settings: Any) -> Stream:
    """A class-incremental stream from any indexable dataset of (image tensor, label): torchvision's, a user's own."""
    items = [dataset[i] for i in range(len(dataset))]
    if not items:
        raise ValueError("dataset has no examples")
    try:
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"dataset gives examples that make no tensor, the first a {type(items[0][0]).__name__}: {error}; it must "
            "give (image, label), images as tensors of one shape (torchvision: transform=ToTensor())"
        ) from None
    y = [label.item() if hasattr(label, "item") else label for _, label, *_ in items]  # MedMNIST's are arrays of one
    return from_tensors(x, y, sizes, **{"name": type(dataset).__name__, **settings})


def from_folder(folder: str | Path, sizes: Sequence[int], *, size: int | None = None, **settings: Any) -> Stream:
    """A class-incremental stream from ``folder/<class>/<image>``, classes in alphabetical order; needs pillow.

    ``size`` resizes all images to size × size; without it they must be equal.
    """
    from forgetless.data.readers.images import read_folder

    x, y, _ = read_folder(Path(folder), size)
    return from_tensors(x, y, sizes, **{"name": Path(folder).name, **settings})


def _numbered(y: Any) -> Tensor:
    """Labels as a tensor."""
    try:
        return torch.as_tensor(y)
    except (TypeError, ValueError):
        first = type(y[0]).__name__
        raise ValueError(
            f"y holds {first}; it must hold classes 0, 1, …; number them: numpy.unique(y, return_inverse=True)[1]"
        ) from None


def _decide(x: Tensor, held: Tensor, decided: dict[bytes, list[bool]]) -> None:
    """Hold out of ``x`` what was held out of a task before, told by its content; for the others ``held`` decides."""
    times: Counter[bytes] = Counter()
    rows = x.cpu().contiguous().reshape(len(x), -1).view(torch.uint8).numpy()
    for row, values in enumerate(rows):
        digest = blake2b(values, digest_size=16).digest()
        before = decided.setdefault(digest, [])
        if times[digest] == len(before):
            before.append(bool(held[row]))
        held[row] = before[times[digest]]
        times[digest] += 1


def stratified(y: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """A mask with this share of every class, at least one and never all; drawn at random."""
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique().tolist():
        rows = (y.cpu() == label).nonzero()[:, 0]
        if len(rows) < 2:
            raise ValueError(f"class {label} has {len(rows)} example; a share of {fraction} held out needs 2 or more")
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return held
