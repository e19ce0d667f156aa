"""A small memory of the stream: named columns of equal length, kept in their own dtype on one device.

Which example goes where is decided by pure functions (``reservoir_slots``, ``balanced_slots``, ``herd``); ``Buffer``
only remembers. A batch is taken at once, with fixed shapes and no read by the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forgetless.compute import kernels
from forgetless.config.catalogue import POLICIES
from forgetless.config.fields import SEED, check_value

_DRAW = 2**62  # random integers are uniform below this; the bias of `% n` is under n / 2**62


def reservoir_slots(numbers: Tensor, seen: int | Tensor, capacity: int) -> Tensor:
    """Algorithm 3 (reservoir sampling, Vitter 1985) for a batch: the slot of each example, ``capacity`` if rejected.

    ``numbers`` are random integers, one an example. Example number S, counted from 0 over the whole stream, goes to
    slot S while S < capacity, else to slot ``number % (S + 1)`` if that is below the capacity. Run one example at a
    time the later of two examples with one slot overwrites the earlier; here the earlier is rejected, which leaves
    the same buffer.
    """
    order = torch.arange(len(numbers), device=numbers.device)
    count = order + seen  # (batch,)
    slots = torch.where(count < capacity, count, numbers % (count + 1)).clamp(max=capacity)
    last = torch.full((capacity + 1,), -1, device=numbers.device).scatter_reduce(0, slots, order, "amax")
    return torch.where(last[slots] == order, slots, capacity)


def host_reservoir_slots(numbers: list[int], seen: int, capacity: int) -> dict[int, int]:
    """``reservoir_slots`` for a buffer on the CPU, in a fraction of its time: {slot: example}, less the rejected."""
    taken: dict[int, int] = {}
    for example, number in enumerate(numbers):
        count = seen + example
        slot = count if count < capacity else number % (count + 1)
        if slot < capacity:
            taken[slot] = example
    return taken


def balanced_slots(labels: Tensor, keys: Tensor, new_labels: Tensor, new_keys: Tensor, unused: Tensor) -> Tensor:
    """Slots that keep the memory balanced over classes: the slot of each new example, the capacity if rejected.

    Every example has a random key. Kept are the examples with the lowest rank by key within their class, ties by key:
    as near to equal shares as what was seen allows, and within a class a uniform sample of all that was seen of it
    (GDumb's greedy memory prefers a class's first examples). ``unused`` marks the slots that hold nothing yet.
    """
    capacity = len(labels)
    size = capacity + len(new_labels)
    label = torch.cat([labels, new_labels])
    key = torch.cat([keys, new_keys])
    empty = torch.cat([unused, torch.zeros_like(new_labels, dtype=torch.bool)])
    position = torch.arange(size, device=label.device)

    by_key = key.argsort(stable=True)
    grouped = by_key[label[by_key].argsort(stable=True)]  # by class, and by key within it
    grouped = grouped[
        empty[grouped].to(torch.uint8).argsort(stable=True)
    ]  # unused slots last, so that they take no rank
    starts = torch.ones_like(position, dtype=torch.bool)
    starts[1:] = label[grouped][1:] != label[grouped][:-1]
    first = torch.where(starts, position, 0).cummax(0).values
    rank = torch.empty_like(position).scatter_(0, grouped, position - first)

    best = by_key[rank[by_key].argsort(stable=True)]  # by rank, and by key within it
    best = best[empty[best].to(torch.uint8).argsort(stable=True)]
    kept = torch.zeros_like(empty).scatter_(0, best[:capacity], True) & ~empty

    free = kept[:capacity].to(torch.uint8).argsort(stable=True)  # slots to give away come first
    enters = kept[capacity:]
    return torch.where(enters, free[(enters.cumsum(0) - 1).clamp(min=0)], capacity)


def herd(features: Tensor, count: int) -> Tensor:
    """iCaRL's herding (Rebuffi et al. 2017, Alg. 4): ``count`` rows whose running mean stays nearest the mean.

    p_k = argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖, each row at most once. The picks depend on each other, so this
    is a loop over picks; each pick looks at all rows at once.
    """
    if not 1 <= count <= len(features):
        raise ValueError(f"count is {count}; herding {len(features)} rows needs 1 to {len(features)}")
    mean = features.mean(0)
    total = torch.zeros_like(mean)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    picks = []
    for k in range(1, count + 1):
        distance = (mean - (features + total) / k).norm(dim=1)
        pick = distance.masked_fill(taken, torch.inf).argmin()
        picks.append(pick)
        total = total + features[pick]
        taken = taken.scatter(0, pick.reshape(1), True)
    return torch.stack(picks)


def restore_generator(generator: torch.Generator | None, state: Tensor | None) -> None:
    """Set a generator to a saved state; an error if that was saved on another kind of device."""
    if generator is None or state is None:
        return
    if state.numel() != generator.get_state().numel():
        raise ValueError(
            f"the state's random numbers were not drawn on a {generator.device.type} device; load it there"
        )
    generator.set_state(state.cpu())


class Buffer:
    """At most ``capacity`` examples, each a row over named columns (say ``x``, ``y``, ``logits``, ``task``).

    ``policy`` is ``reservoir`` (a uniform sample of all that was added) or ``balanced`` (equal shares of the classes in
    column ``y``). The columns, their shapes and dtypes are fixed by the first batch; ``device=None`` keeps them where
    that batch is. Random numbers come from ``generator``, or one of the buffer's own, started from ``seed``.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: str = "reservoir",
        device: torch.device | str | None = None,
        seed: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        check_value("capacity", capacity, int, least=1)
        check_value("policy", policy, str, choices=POLICIES)
        check_value("seed", seed, int, **SEED)
        self.capacity = int(capacity)
        self.policy = policy
        self.seed = int(seed)
        self.seen = 0
        self._device = None if device is None else torch.device(device)
        self._rows: dict[str, Tensor] = {}  # each (capacity + 1, …): the last row takes what is rejected
        self._keys = torch.empty(0)
        self._counter: Tensor | None = None  # ``seen`` on the device, for writes that are replayed
        self._generator = generator

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def __getitem__(self, name: str) -> Tensor:
        """A column's filled rows; a view, not a copy."""
        if name not in self._rows:
            raise KeyError(f"no column named {name!r}; the columns are {', '.join(self._rows) or 'not known yet'}")
        return self._rows[name][: len(self)]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._rows)

    @property
    def device(self) -> torch.device | None:
        """Where the columns are; None until that is known."""
        return self._device

    @property
    def generator(self) -> torch.Generator:
        """The buffer's own random numbers; there from the first batch on."""
        if self._generator is None:
            raise ValueError("the buffer is empty: add examples first, its random numbers start with them")
        return self._generator

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """An error if ``batch`` does not fit what is stored; changes nothing."""
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch is a {type(batch).__name__}; it must be a mapping, {{column: tensor}}")
        if not batch:
            raise ValueError("a batch needs at least one column")
        for name, column in batch.items():
            if not isinstance(column, Tensor) or not column.ndim:
                got = (
                    f"a tensor of shape {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
                )
                hint = "; give several as a mapping, {name: tensor}" if name == "x" and got in ("list", "tuple") else ""
                raise TypeError(f"column {name!r} is {got}; it must be a tensor with one row for each example{hint}")
            if column.layout != torch.strided or column.dtype in (torch.uint16, torch.uint32, torch.uint64):
                kind = column.dtype if column.layout == torch.strided else column.layout
                wanted = "a signed or shorter one: x.to(torch.int32)" if kind == column.dtype else "dense: x.to_dense()"
                raise TypeError(f"column {name!r} is {kind}, of which torch takes no rows; it must be {wanted}")
        sizes = {name: len(column) for name, column in batch.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"columns differ in length: {sizes}")
        if self.policy == "balanced" and "y" not in batch:
            raise ValueError(f"policy 'balanced' needs the labels as column 'y'; the columns are {', '.join(batch)}")
        if self.policy == "balanced" and batch["y"].ndim != 1:
            raise ValueError(f"policy 'balanced' needs a class for each example; y has shape {tuple(batch['y'].shape)}")
        if not self._rows:
            return
        if set(batch) != set(self._rows):
            raise ValueError(f"the buffer holds the columns {', '.join(self._rows)}; this batch has {', '.join(batch)}")
        for name, column in batch.items():
            row = self._rows[name]
            if column.shape[1:] != row.shape[1:]:
                raise ValueError(
                    f"column {name!r} has examples of shape {tuple(column.shape[1:])}; "
                    f"the buffer holds shape {tuple(row.shape[1:])}"
                )
            if column.dtype != row.dtype:
                raise ValueError(f"column {name!r} has dtype {column.dtype}; the buffer holds {row.dtype}")

    @torch.no_grad()
    def add(self, batch: Mapping[str, Tensor]) -> None:
        """Offer a batch of examples."""
        self.check(batch)
        self.write(batch)
        self.advance(len(next(iter(batch.values()))))

    @torch.no_grad()
    def write(self, batch: Mapping[str, Tensor]) -> None:
        """The part of ``add`` that is done on the device, and can be captured; ``check`` and ``advance`` are not."""
        self._open(batch)
        size = len(next(iter(batch.values())))
        numbers = torch.randint(_DRAW, (size,), generator=self._generator, device=self._device)
        if self.policy == "balanced":
            unused = torch.arange(self.capacity, device=self._device) >= len(self)
            labels = batch["y"].to(numbers.device)
            slots = balanced_slots(self._rows["y"][:-1], self._keys[:-1], labels, numbers, unused)
            self._keys.index_copy_(0, slots, numbers)
        elif self._counter is None:
            taken = host_reservoir_slots(numbers.tolist(), self.seen, self.capacity)
            if not taken:
                return
            slots = torch.tensor(list(taken.keys()), device="cpu")  # whatever torch's default
            rows = torch.tensor(list(taken.values()), device="cpu")
            batch = {name: column.detach().cpu().index_select(0, rows) for name, column in batch.items()}
        elif kernels.can_serve(numbers) and size <= 256:
            from forgetless.compute.kernels import reservoir  # imports Triton

            slots = reservoir.reservoir_slots(numbers, self._counter, self.capacity)
        else:
            slots = reservoir_slots(numbers, self._counter, self.capacity)
            self._counter.add_(size)
        for name, column in batch.items():
            self._rows[name].index_copy_(0, slots, column.detach().to(numbers.device))

    def advance(self, size: int) -> None:
        """Count ``size`` more examples as seen."""
        self.seen += size

    @torch.no_grad()
    def replace(self, batch: Mapping[str, Tensor]) -> None:
        """Put ``batch`` in place of everything held and seen, for memories that are rebuilt (herding)."""
        self.check(batch)
        size = len(next(iter(batch.values())))
        if size > self.capacity:
            raise ValueError(f"{size} examples do not fit a capacity of {self.capacity}")
        self._open(batch)
        for name, column in batch.items():
            self._rows[name][:size] = column.detach().to(self._rows[name].device)
        if self.policy == "balanced":
            self._keys[:size] = torch.randint(_DRAW, (size,), generator=self._generator, device=self._device)
        self.seen = size
        self._count()

    def draw(self, size: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """``size`` examples without replacement, or all there are if fewer."""
        if size < 1:
            raise ValueError(f"size is {size}; it must be 1 or more")
        if not len(self):
            raise ValueError("the buffer is empty: there is nothing to draw")
        device = next(iter(self._rows.values())).device
        order = torch.randperm(len(self), generator=generator or self._generator, device=device)[:size]
        return {name: row.index_select(0, order) for name, row in self._rows.items()}

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors: all that is needed to go on exactly as if never stopped."""
        return {
            "capacity": self.capacity,
            "policy": self.policy,
            "seen": self.seen,
            "columns": {name: self[name].clone() for name in self._rows},
            "keys": self._keys[: len(self)].clone(),
            "generator": None if self._generator is None else self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if missing := self.state_dict().keys() - state.keys():
            raise ValueError(f"the state of the buffer lacks {', '.join(sorted(missing))}")
        for name in ("capacity", "policy"):
            if state[name] != getattr(self, name):
                raise ValueError(f"the state has {name} {state[name]!r}; this buffer has {getattr(self, name)!r}")
        columns: dict[str, Tensor] = state["columns"]
        device = self._device or next((column.device for column in columns.values()), None)
        if self._generator is None and device is not None and state["generator"] is not None:
            self._generator = torch.Generator(device)
        if state["generator"] is not None:
            restore_generator(self._generator, state["generator"])
        elif self._generator is not None:
            self._generator.manual_seed(self.seed)
        self._rows = {}
        self.seen = state["seen"]
        if columns:
            self._open(columns)
            for name, column in columns.items():
                self._rows[name][: len(column)] = column.to(self._rows[name].device)
            self._keys[: len(state["keys"])] = state["keys"].to(self._keys.device)
        self._count()

    def _open(self, batch: Mapping[str, Tensor]) -> None:
        """On the first batch: settle the device, and allocate."""
        if self._rows:
            return
        if self._device is None:
            self._device = next(iter(batch.values())).device
        with torch.inference_mode(False):  # what is made within it could not be written to outside
            for name, column in batch.items():
                self._rows[name] = column.new_zeros((self.capacity + 1, *column.shape[1:]), device=self._device)
            keys = self.capacity + 1 if self.policy == "balanced" else 0
            self._keys = torch.zeros(keys, dtype=torch.int64, device=self._device)
            if self._device.type != "cpu":
                self._counter = torch.full((), self.seen, device=self._device)
        self._generator = self._generator or torch.Generator(self._device).manual_seed(self.seed)

    def _count(self) -> None:
        if self._counter is not None:
            self._counter.fill_(self.seen)
