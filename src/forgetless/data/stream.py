"""A stream of tasks as frozen values. Images stay as they are on disk (uint8); labels are int64."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from forgetless.data.holdout import held_out_rows


@dataclass(frozen=True)
class Split:
    """Examples, of shape (count, channels, height, width) for images, uint8 or float, and their labels, int64."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} examples and y has {len(self.y)} labels; the numbers must be equal")
        if self.y.dtype != torch.int64:
            raise ValueError(f"labels have dtype {self.y.dtype}; they must be torch.int64")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Split({len(self):,} examples of {'×'.join(map(str, self.x.shape[1:]))})"

    def subset(self, rows: Tensor) -> Split:
        """Return the examples at ``rows``, on the device of the labels."""
        x = self.x.index_select(0, rows.to(self.x.device))
        return Split(x.to(self.y.device), self.y.index_select(0, rows))

    def where(self, mask: Tensor) -> Split:
        """Return the examples at which ``mask`` is true, in their order."""
        return self.subset(mask.nonzero()[:, 0])

    def sample(self, size: int, generator: torch.Generator) -> Split:
        """Return ``size`` random examples without replacement, or all if there are fewer."""
        return self.subset(torch.randperm(len(self), generator=generator, device=self.y.device)[:size])

    def to(self, device: torch.device | str, *, images: bool = True) -> Split:
        """Return the split on another device; with ``images=False`` only the labels move."""
        return Split(self.x.to(device) if images else self.x, self.y.to(device))


@dataclass(frozen=True)
class Task:
    """The training and test examples of one task, and the labels that occur in them."""

    train: Split
    test: Split
    classes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in order, and how their images become inputs of a network.

    uint8 images are scaled to [0, 1]. Every image is normalised to (x − mean) / std. Random crops and flips apply to
    training images only.

    Examples:
        >>> import torch
        >>> from forgetless.data.stream import Split, Stream, Task
        >>> first = Split(torch.rand(6, 1, 4, 4), torch.tensor([0, 1] * 3))
        >>> second = Split(torch.rand(6, 1, 4, 4), torch.tensor([2, 3] * 3))
        >>> stream = Stream("mine", (Task(first, first, (0, 1)), Task(second, second, (2, 3))), 4, "class")
        >>> stream.shape
        (1, 4, 4)

    Args:
        name: The name that records carry.
        tasks: The tasks, in the order in which they are learned.
        classes: The number of classes of all tasks together.
        scenario: ``"class"`` if every task brings new classes, ``"domain"`` if all tasks have the same classes.
        mean: The mean of each channel, or one number for all. Default: images are not normalised.
        std: The standard deviation of each channel, or one number for all; above 0.
        pad: The number of pixels by which a random crop may reach over the edge; 0 for no crops.
        flip: Whether half of the training images are flipped left to right.
        mirror: Whether a crop sees the mirrored image over the edge. Default: it sees black.
    """

    name: str
    tasks: tuple[Task, ...]
    classes: int
    scenario: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0
    flip: bool = False
    mirror: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if isinstance(value := getattr(self, name), int | float):
                object.__setattr__(self, name, (float(value),))
        if not self.tasks:
            raise ValueError(f"stream {self.name!r} has no tasks")
        if problem := next(self._problems(), None):
            raise ValueError(f"stream {self.name!r}: {problem}")

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the scenario, the preparation of images and the examples of each task."""
        if self.scenario not in ("class", "domain"):
            yield f"scenario is {self.scenario!r}; it must be class or domain"
        if (self.pad or self.flip) and len(self.shape) != 3:
            yield f"pad and flip need images (channels, height, width), but an example has shape {self.shape}"
        if bool(self.mean) != bool(self.std):
            yield f"mean is {self.mean} and std is {self.std}; give both or neither"
        channels = self.shape[0] if self.shape else 1
        if not {len(self.mean), len(self.std)} <= {0, 1, channels}:
            yield f"mean is {self.mean} and std is {self.std}; give one number per channel ({channels}) or one for all"
        if not all(value > 0 for value in self.std):
            yield f"std is {self.std}; each must be above 0"
        pixels = min(self.shape[-2:], default=0)
        if self.mirror and not 0 < self.pad < pixels:
            yield f"mirror is on and pad is {self.pad}; pad must be 1 or more and below the images' {pixels} pixels"
        dtype = self.tasks[0].train.x.dtype
        for number, task in enumerate(self.tasks, start=1):
            for split, kind in ((task.train, "training"), (task.test, "test")):
                if not len(split):
                    yield f"task {number} has no {kind} examples"
                shape = tuple(split.x.shape[1:])
                if (shape, split.x.dtype) != (self.shape, dtype):
                    yield (
                        f"the {kind} examples of task {number} are {split.x.dtype} of shape {shape}, but the first are "
                        f"{dtype} of shape {self.shape}; all must have the same type and shape"
                    )
            trained, tested = (set(split.y.unique().tolist()) for split in (task.train, task.test))
            classes, listed = set(task.classes), ", ".join(map(str, task.classes))
            if not classes <= set(range(self.classes)):
                below = f"with {self.classes} classes they must be below {self.classes}"
                yield f"task {number} has classes {listed}; {below}"
            if missing := classes - trained:
                yield f"task {number} has no training example of class {min(missing)}"
            if foreign := (trained | tested) - classes:
                yield f"task {number} has examples of class {min(foreign)}, but its classes are {listed}"

    @cached_property
    def checksum(self) -> str:
        """A checksum of the preparation, the shapes, the labels and up to 1,000 images of each split."""
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
        """The shape of one example."""
        return tuple(self.tasks[0].train.x.shape[1:])

    def to(self, device: torch.device | str, *, images: bool = True) -> Stream:
        """Return the stream on another device; ``images=False`` moves only the labels, for images that do not fit."""
        return self.map(lambda split: split.to(device, images=images))

    def map(self, change: Callable[[Split], Split]) -> Stream:
        """Return the stream with ``change`` applied to every split."""
        return replace(self, tasks=tuple(Task(change(t.train), change(t.test), t.classes) for t in self.tasks))

    def joint(self) -> Stream:
        """Return the stream with all training examples in the first task; test sets stay as they are."""
        train = Split(torch.cat([t.train.x for t in self.tasks]), torch.cat([t.train.y for t in self.tasks]))
        classes = tuple(sorted({label for task in self.tasks for label in task.classes}))
        return replace(self, tasks=(Task(train, self.tasks[0].test, classes), *self.tasks[1:]))

    def validation(self, fraction: float = 0.1, seed: int = 0) -> Stream:
        """Return the stream with part of each training set as its test set, for choosing settings.

        Tasks with the same labels in the same order hold out the same rows, since they may be the same images,
        rotated for example. An example that recurs in other tasks is held out of all of them or of none.

        Args:
            fraction: The share of every class of every task that is held out.
            seed: The seed of the random choice.

        Returns:
            A stream that does not contain the original test sets.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction is {fraction}; it must be between 0 and 1")
        examples = [(task.train.x, task.train.y) for task in self.tasks]
        masks = held_out_rows(examples, fraction, torch.Generator().manual_seed(seed))
        pairs = zip(self.tasks, masks, strict=True)
        tasks = (Task(task.train.where(~mask), task.train.where(mask), task.classes) for task, mask in pairs)
        return replace(self, name=f"{self.name} (validation)", tasks=tuple(tasks))
