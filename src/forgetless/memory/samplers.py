"""Which examples of a stream a buffer holds: one sampler per policy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from forgetless.compute import kernels
from forgetless.memory.slots import balanced_slots, host_reservoir_slots, reservoir_slots

_DRAW = 2**62  # random integers are uniform below this; the bias of `% n` is under n / 2**62
Placed = tuple[Tensor, Tensor | None] | None  # slots, and the rows of the batch for them; None: all rows, or no slots


class Sampler(ABC):
    """Decide which example goes to which slot.

    Args:
        rows: The buffer's columns, each (capacity + 1, …): the last row takes what is rejected.
        generator: The buffer's random numbers.
    """

    waits = False  # whether a few batches are written in one go

    def __init__(self, rows: Mapping[str, Tensor], generator: torch.Generator) -> None:
        self._rows, self._generator = rows, generator
        first = next(iter(rows.values()))
        self._capacity, self._device = len(first) - 1, first.device
        self.seen = 0

    @abstractmethod
    def place(self, batch: Mapping[str, Tensor], remembered: bool) -> Placed:
        """Return the slots of the examples of a batch. On a GPU it can be captured."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs besides the rows."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> Tensor:
        """Restore a buffer's state and return which of its rows are held, in the order of their slots."""

    def filled(self) -> int:
        """Return the number of examples held."""
        return min(self.seen, self._capacity)

    def advance(self, size: int) -> None:
        """Count ``size`` more examples as seen."""
        self.seen += size

    def restart(self, size: int) -> None:
        """Take the first ``size`` rows for a new memory, and for all that was seen."""
        self.seen = size

    def _seen_of(self, state: Mapping[str, Any], held: int) -> int:
        """Return how many examples count as seen after ``held`` rows of a state were taken."""
        seen: int = state["seen"]
        return seen if held == min(seen, self._capacity) else held

    def _numbers(self, size: int) -> Tensor:
        return torch.randint(_DRAW, (size,), generator=self._generator, device=self._device)


@final
class Reservoir(Sampler):
    """A uniform sample of all examples (Algorithm 3 of the paper)."""

    def __init__(self, rows: Mapping[str, Tensor], generator: torch.Generator) -> None:
        super().__init__(rows, generator)
        on_cpu = self._device.type == "cpu"
        self._counter = None if on_cpu else torch.full((), 0, device=self._device)  # for writes that are replayed

    def place(self, batch: Mapping[str, Tensor], remembered: bool) -> Placed:
        size = len(next(iter(batch.values())))
        numbers = self._numbers(size)
        if self._counter is None:
            taken = host_reservoir_slots(numbers.tolist(), self.seen, self._capacity)
            return as_tensors(taken) if taken else None
        if kernels.can_serve(numbers) and size <= 256:
            from forgetless.compute.kernels import reservoir  # imports Triton

            return reservoir.reservoir_slots(numbers, self._counter, self._capacity), None
        slots = reservoir_slots(numbers, self._counter, self._capacity)
        self._counter.add_(size)
        return slots, None

    def restart(self, size: int) -> None:
        self.seen = size
        if self._counter is not None:
            self._counter.fill_(size)

    def state_dict(self) -> dict[str, Any]:
        return {"keys": torch.empty(0)}

    def load_state_dict(self, state: Mapping[str, Any]) -> Tensor:
        """Keep a uniform sample if the capacity is smaller now. If it is larger, those held count as all seen."""
        count = len(next(iter(state["columns"].values())))
        generator = torch.Generator("cpu").manual_seed(self._generator.initial_seed())
        order = torch.randperm(count, generator=generator, device="cpu")
        held = order[: self._capacity].sort().values
        self.restart(self._seen_of(state, len(held)))
        return held


@final
class Balanced(Sampler):
    """Equal shares of the classes, each a uniform sample of the class."""

    def __init__(self, rows: Mapping[str, Tensor], generator: torch.Generator) -> None:
        super().__init__(rows, generator)
        self._keys = torch.zeros(self._capacity + 1, dtype=torch.int64, device=self._device)

    def place(self, batch: Mapping[str, Tensor], remembered: bool) -> Placed:
        labels = batch["y"].to(self._device)
        numbers = self._numbers(len(labels))
        unused = torch.arange(self._capacity, device=self._device) >= self.filled()
        slots = balanced_slots(self._rows["y"][:-1], self._keys[:-1], labels, numbers, unused)
        self._keys.index_copy_(0, slots, numbers)
        return slots, None

    def restart(self, size: int) -> None:
        self.seen = size
        self._keys[:size] = self._numbers(size)

    def state_dict(self) -> dict[str, Any]:
        return {"keys": self._keys[: self.filled()].clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Tensor:
        """Keep the lowest keys if the capacity is smaller now. If it is larger, those held count as all seen."""
        keys = state["keys"].to(self._device)
        empty = torch.zeros_like(self._keys[:-1])
        slots = balanced_slots(empty, empty, state["columns"]["y"].to(self._device), keys, empty == 0)
        held = (slots < self._capacity).nonzero()[:, 0]
        self._keys[: len(held)] = keys[held]
        self.seen = self._seen_of(state, len(held))
        return held


def as_tensors(taken: Mapping[int, int]) -> tuple[Tensor, Tensor]:
    """Return {slot: row} as two tensors on the CPU, whatever torch's default device."""
    slots, rows = (np.fromiter(numbers, np.int64, len(taken)) for numbers in (taken.keys(), taken.values()))
    return torch.from_numpy(slots), torch.from_numpy(rows)
