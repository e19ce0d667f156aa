"""A bottom-k sketch of the distinct examples of a stream, for the buffer's policy "distinct".

The key of an example is a hash of its content, so a repeat has the same key. Of each stratum the sketch holds the
examples with the lowest keys, which are a uniform sample of its distinct examples. A stratum is a class within a period
of the stream, and the strata get shares as equal as possible (``slots.distinct_slots``). Examples of an earlier period
therefore keep their share, however many follow and however often these repeat.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from forgetless.memory.batch import role
from forgetless.memory.hashing import GOLDEN, LOW_BITS, content_keys, host_content_keys, word_weights
from forgetless.memory.labels import has_classes, labelled
from forgetless.memory.ragged import LENGTHS, content
from forgetless.memory.samplers import Placed, Sampler, as_tensors
from forgetless.memory.slots import EMPTY, distinct_slots


def strata_of(y: Tensor, part: Tensor) -> Tensor:
    """Return the number of each example's stratum: its class within a part of the stream."""
    return (y.long() * GOLDEN + part) & LOW_BITS


@final
class HostSlots:
    """``distinct_slots`` one example at a time on the CPU, in a fraction of the time."""

    def __init__(
        self, capacity: int, keys: Iterable[int] = (), strata: Iterable[int] = (), older: Iterable[int] = ()
    ) -> None:
        self._capacity = capacity
        self._strata: dict[int, list[int]] = {}  # the keys of a stratum, in order
        self._slots: dict[int, int] = {}  # by key
        self._older = frozenset(older)  # the keys held when the period began
        self._worst = (-1, -1, -1)  # the rank, key and stratum of the example to drop next, once the memory is full
        self._longest: list[tuple[int, int, int]] = []  # a heap of (-size, -last key, stratum), some out of date
        for key, stratum in zip(keys, strata, strict=True):
            self._enter(key, stratum)

    @property
    def filled(self) -> int:
        """The number of examples held."""
        return len(self._slots)

    def take(self, keys: Tensor, strata: Tensor) -> dict[int, int]:
        """Offer a batch of examples, and return {slot: example} of those that enter."""
        # Most examples of a long stream are rejected at once. Those that do not enter now would not enter later either.
        distinct, which = strata.unique(return_inverse=True)
        limits = np.array([self._limit(stratum) for stratum in distinct.tolist()], np.int64)
        candidates = np.flatnonzero(keys.numpy() <= limits[which.numpy()])
        columns = (candidates, keys.numpy()[candidates], strata.numpy()[candidates])
        taken: dict[int, int] = {}
        for example, key, stratum in zip(*(column.tolist() for column in columns), strict=True):
            if key not in self._slots and key not in self._older and key <= self._limit(stratum):
                taken[self._enter(key, stratum)] = example
        return taken

    def begin_period(self) -> None:
        """Reject repeats of the examples held now, even after these are dropped."""
        self._older = frozenset(self._slots)

    def _limit(self, stratum: int) -> int:
        """Return the largest key with which a new example of this stratum enters."""
        keys = self._strata.get(stratum, ())
        worst_rank, worst_key, _ = self._worst
        if len(self._slots) < self._capacity or len(keys) < worst_rank:
            return EMPTY - 1
        last = keys[-1] if keys else -1
        return max(last, worst_key) if len(keys) == worst_rank else last

    def _enter(self, key: int, stratum: int) -> int:
        """Return the slot of a new example: an empty one, or that of the example it replaces."""
        keys = self._strata.setdefault(stratum, [])
        insort(keys, key)
        slot = len(self._slots)
        if slot == self._capacity:
            _, dropped, longest = max(self._worst, (len(keys) - 1, keys[-1], stratum))
            slot = self._slots.pop(dropped)
            self._strata[longest].pop()
            if longest != stratum:
                self._note(longest)
        self._slots[key] = slot
        self._note(stratum)
        if len(self._slots) == self._capacity:
            self._worst = self._find_worst()
        return slot

    def _note(self, stratum: int) -> None:
        """Note the size and the last key of a stratum that changed."""
        if keys := self._strata[stratum]:
            heapq.heappush(self._longest, (-len(keys), -keys[-1], stratum))
        else:
            del self._strata[stratum]
        if len(self._longest) > 4 * len(self._strata) + 8:  # most are out of date
            self._longest = [(-len(keys), -keys[-1], stratum) for stratum, keys in self._strata.items()]
            heapq.heapify(self._longest)

    def _find_worst(self) -> tuple[int, int, int]:
        """Return the largest rank, the largest key of this rank, and its stratum."""
        while True:
            size, key, stratum = self._longest[0]
            keys = self._strata.get(stratum)
            if keys and (-len(keys), -keys[-1]) == (size, key):
                return -size - 1, -key, stratum
            heapq.heappop(self._longest)


@final
class Sketch(Sampler):
    """Equal shares of the strata, each a uniform sample of the stratum's distinct examples.

    An example that was held when the present period began is not new in it, even if it was dropped since. The
    examples held therefore do not depend on how a period is split into batches.

    Args:
        rows: The buffer's columns, each (capacity + 1, …): the last row takes what is rejected.
        generator: The buffer's random numbers, which it does not use.
        salt: Makes the keys of two buffers independent.
        period: The present period.
    """

    waits = True

    def __init__(self, rows: Mapping[str, Tensor], generator: torch.Generator, salt: int, period: int) -> None:
        super().__init__(rows, generator)
        self._salt = salt
        self._content = [name for name in rows if role(name) in ("x", "y", LENGTHS)] or list(rows)
        self._weights: dict[str, Tensor] = {}
        self._shapes: dict[str, torch.Size] = {}  # of the rows that have these weights
        self._period = torch.full((), period, device=self._device)  # a tensor, for writes that are replayed
        self._keys = torch.full((self._capacity + 1,), EMPTY, device=self._device)
        self._strata = torch.zeros_like(self._keys)
        self._older = self._keys[:-1].clone()  # the keys held when the period began, in order
        self._filled: int | None = 0  # None: not read from the GPU since examples were offered
        self._host = HostSlots(self._capacity) if self._device.type == "cpu" else None

    def place(self, batch: Mapping[str, Tensor], remembered: bool) -> Placed:
        batch = {name: column.detach().to(self._device) for name, column in batch.items()}
        hashed, has_label, y = self._hashed(batch), labelled(batch), batch.get("y")
        part = self._period * 2 + int(remembered)
        strata = strata_of(y, part) if y is not None and has_classes(y) else part.expand(len(has_label))
        hash_rows = content_keys if self._host is None else host_content_keys
        keys = hash_rows(hashed, self._weights, self._salt).masked_fill(~has_label, EMPTY)
        if self._host is not None:
            if not (taken := self._host.take(keys, strata)):
                return None
            slots, rows = as_tensors(taken)
            self._hold(slots, keys.index_select(0, rows), strata.index_select(0, rows))
            return slots, rows
        nearest = torch.searchsorted(self._older, keys).clamp_(max=len(self._older) - 1)
        keys = keys.masked_fill(self._older[nearest] == keys, EMPTY)
        slots = distinct_slots(self._keys[:-1], self._strata[:-1], keys, strata)
        self._hold(slots, keys, strata)
        return slots, None

    def _hold(self, slots: Tensor, keys: Tensor, strata: Tensor) -> None:
        self._keys.index_copy_(0, slots, keys)
        self._strata.index_copy_(0, slots, strata)

    def _hashed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the content of a batch, without logits and padding, and make the weights of its words."""
        columns = content({name: batch[name] for name in self._content})
        for name, column in columns.items():
            if self._shapes.get(name) != column.shape[1:]:  # longer sequences have more words
                self._shapes[name], self._weights[name] = column.shape[1:], word_weights(name, column)
        return columns

    def filled(self) -> int:
        """Return the number of examples held. On a GPU it is read once after each change, until the buffer is full."""
        if self._host is not None:
            return self._host.filled
        if self._filled is None:
            self._filled = int((self._keys[:-1] != EMPTY).sum())
        return self._filled

    def advance(self, size: int) -> None:
        self.seen += size
        if self._filled != self._capacity:
            self._filled = None

    def begin_period(self, period: int) -> None:
        """Put the examples that follow into new strata."""
        self._period.fill_(period)
        self._older.fill_(EMPTY)[: self._capacity].copy_(self._keys[:-1].sort().values)
        if self._host is not None:
            self._host.begin_period()

    def state_dict(self) -> dict[str, Any]:
        held = self.filled()
        keys, strata, older = self._keys[:held], self._strata[:held], self._older
        return {"keys": keys.clone(), "strata": strata.clone(), "older": older.clone(), "salt": self._salt}

    def load_state_dict(self, state: Mapping[str, Any]) -> Tensor:
        """Keep the lowest ranks and keys if the capacity is smaller now."""
        keys, strata, older = (state[name].to(self._device) for name in ("keys", "strata", "older"))
        slots = distinct_slots(self._keys[:-1].fill_(EMPTY), self._strata[:-1], keys, strata)
        held = (slots < self._capacity).nonzero()[:, 0]
        self._keys[: len(held)] = keys[held]
        self._strata[: len(held)] = strata[held]
        self._older = torch.full((max(len(older), self._capacity),), EMPTY, device=self._device)
        self._older[: len(older)] = older
        self._salt, self.seen, self._filled = state["salt"], state["seen"], len(held)
        if self._host is not None:
            self._host = HostSlots(self._capacity, keys[held].tolist(), strata[held].tolist(), older.tolist())
        return held
