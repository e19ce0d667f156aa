"""A small memory of the stream: named columns of equal length, held in their own dtype on one device.

Pure functions (``reservoir_slots``, ``balanced_slots``, ``herd``) decide which example goes where; ``Buffer`` holds the
examples. A batch is added at once, with fixed shapes and, on a GPU, without a GPU-to-CPU sync.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from forgetless.compute import kernels
from forgetless.repair.settings import Memory

_DRAW = 2**62  # random integers are uniform below this; the bias of `% n` is under n / 2**62


def reservoir_slots(numbers: Tensor, seen: int | Tensor, capacity: int) -> Tensor:
    """Return the slot of each example of a batch, ``capacity`` if it is rejected.

    This is Algorithm 3 (reservoir sampling, Vitter 1985). Example S, counted from 0 over the whole stream, goes to slot
    S while S < capacity, else to slot ``number % (S + 1)`` if that is below the capacity. One example at a time, the
    later of two examples with one slot overwrites the earlier. Here the earlier is rejected, which leaves the same
    buffer. ``numbers`` are random integers, one per example; ``seen`` counts the examples before this batch.
    """
    order = torch.arange(len(numbers), device=numbers.device)
    count = order + seen  # (batch,)
    slots = torch.where(count < capacity, count, numbers % (count + 1)).clamp(max=capacity)
    last = torch.full((capacity + 1,), -1, device=numbers.device).scatter_reduce(0, slots, order, "amax")
    return torch.where(last[slots] == order, slots, capacity)


def host_reservoir_slots(numbers: list[int], seen: int, capacity: int) -> dict[int, int]:
    """Return ``reservoir_slots`` as {slot: example}, for a buffer on the CPU, in a fraction of the time."""
    taken: dict[int, int] = {}
    for example, number in enumerate(numbers):
        count = seen + example
        slot = count if count < capacity else number % (count + 1)
        if slot < capacity:
            taken[slot] = example
    return taken


def balanced_slots(labels: Tensor, keys: Tensor, new_labels: Tensor, new_keys: Tensor, unused: Tensor) -> Tensor:
    """Return the slot of each new example in a memory balanced over classes, the capacity if it is rejected.

    Every example has a random key. The memory holds the examples with the lowest rank by key within their class, ties
    by key. The classes get shares as equal as possible, each a uniform sample of the class's examples so far. (GDumb's
    greedy memory prefers the first examples of a class.) ``unused`` marks the empty slots.
    """
    capacity = len(labels)
    size = capacity + len(new_labels)
    label = torch.cat([labels, new_labels])
    key = torch.cat([keys, new_keys])
    empty = torch.cat([unused, torch.zeros_like(new_labels, dtype=torch.bool)])
    position = torch.arange(size, device=label.device)

    by_key = key.argsort(stable=True)
    grouped = by_key[label[by_key].argsort(stable=True)]  # by class, and by key within it
    grouped = grouped[empty[grouped].to(torch.uint8).argsort(stable=True)]  # unused slots last: they take no rank
    starts = torch.ones_like(position, dtype=torch.bool)
    starts[1:] = label[grouped][1:] != label[grouped][:-1]
    first = torch.where(starts, position, 0).cummax(0).values
    rank = torch.empty_like(position).scatter_(0, grouped, position - first)

    best = by_key[rank[by_key].argsort(stable=True)]  # by rank, and by key within it
    best = best[empty[best].to(torch.uint8).argsort(stable=True)]
    stays = torch.zeros_like(empty).scatter_(0, best[:capacity], True) & ~empty

    free = stays[:capacity].to(torch.uint8).argsort(stable=True)  # slots to overwrite come first
    enters = stays[capacity:]
    return torch.where(enters, free[(enters.cumsum(0) - 1).clamp(min=0)], capacity)


def herd(features: Tensor, count: int) -> Tensor:
    """Return ``count`` rows whose running mean stays nearest the mean: iCaRL's herding (Rebuffi et al. 2017, Alg. 4).

    p_k = argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖, each row at most once.
    """
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


@final
class Buffer:
    """Hold at most ``capacity`` examples, each a row over named columns (such as ``x``, ``y`` and ``logits``).

        >>> buffer = Buffer(capacity=4)
        >>> buffer.add({"x": torch.rand(10, 3), "y": torch.arange(10)})
        >>> len(buffer), buffer.draw(2)["x"].shape
        (4, torch.Size([2, 3]))

    Args:
        capacity: The number of examples it holds.
        policy: "reservoir" (a uniform sample of all examples) or "balanced" (equal shares of the classes in ``y``).
        device: Where the columns are. Default: where the first batch is. That batch also fixes the columns, their
            shapes and their dtypes.
        seed: The seed of the buffer's random numbers.
        generator: Replaces the generator that ``seed`` starts.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: str = Memory.policy,
        device: torch.device | str | None = None,
        seed: int = Memory.seed,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = Memory(capacity=capacity, policy=policy, seed=seed)
        self.capacity, self.policy, self.seed = settings.capacity, settings.policy, settings.seed
        self.seen = 0
        self.device = None if device is None else torch.device(device)  # None until the first batch
        self._rows: dict[str, Tensor] = {}  # each (capacity + 1, …): the last row takes what is rejected
        self._keys = torch.empty(0)
        self._counter: Tensor | None = None  # ``seen`` on the device, for writes that are replayed
        self.generator = generator  # None until the first batch

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of a column's filled rows."""
        if name not in self._rows:
            raise KeyError(f"no column named {name!r}; the columns are {', '.join(self._rows) or 'not known yet'}")
        return self._rows[name][: len(self)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; empty before the first batch."""
        return tuple(self._rows)

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """Raise an error if ``batch`` does not fit what is stored; change nothing."""
        for name, column in batch.items():
            if not isinstance(column, Tensor) or not column.ndim or column.layout != torch.strided:
                kind = f"{column.layout} tensor" if isinstance(column, Tensor) else type(column).__name__
                hint = "; give several as a mapping, {name: tensor}" if kind in ("list", "tuple") else ""
                raise TypeError(f"column {name!r} is a {kind}; it must be a dense tensor, one row per example{hint}")
        sizes = {name: len(column) for name, column in batch.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"columns differ in length: {sizes}")
        if self.policy == "balanced" and ("y" not in batch or batch["y"].ndim != 1):
            y = f"y has shape {tuple(batch['y'].shape)}" if "y" in batch else f"the columns are {', '.join(batch)}"
            raise ValueError(f"policy 'balanced' needs the column 'y' with one class per example; {y}")
        if self._rows and set(batch) != set(self._rows):
            raise ValueError(f"the buffer holds the columns {', '.join(self._rows)}; this batch has {', '.join(batch)}")
        for name, row in self._rows.items():
            column = batch[name]
            if column.shape[1:] != row.shape[1:]:
                shape, held = tuple(column.shape[1:]), tuple(row.shape[1:])
                raise ValueError(f"column {name!r} has examples of shape {shape}; the buffer holds shape {held}")
            if column.dtype != row.dtype:
                raise ValueError(f"column {name!r} has dtype {column.dtype}; the buffer holds {row.dtype}")

    @torch.no_grad()
    def add(self, batch: Mapping[str, Tensor]) -> None:
        """Offer a batch of examples, ``{column: tensor}``."""
        self.check(batch)
        self.write(batch)
        self.advance(len(next(iter(batch.values()))))

    @torch.no_grad()
    def write(self, batch: Mapping[str, Tensor]) -> None:
        """Do the part of ``add`` that runs on the device and can be captured; ``check`` and ``advance`` cannot."""
        self._open(batch)
        size = len(next(iter(batch.values())))
        numbers = torch.randint(_DRAW, (size,), generator=self.generator, device=self.device)
        if self.policy == "balanced":
            unused = torch.arange(self.capacity, device=self.device) >= len(self)
            labels = batch["y"].to(numbers.device)
            slots = balanced_slots(self._rows["y"][:-1], self._keys[:-1], labels, numbers, unused)
            self._keys.index_copy_(0, slots, numbers)
        elif self._counter is None:
            taken = host_reservoir_slots(numbers.tolist(), self.seen, self.capacity)
            if not taken:
                return
            slots = torch.tensor(list(taken.keys()), device="cpu")  # whatever torch's default device
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
        """Replace everything held and seen by ``batch``, for memories that are rebuilt (herding)."""
        self.check(batch)
        size = len(next(iter(batch.values())))
        if size > self.capacity:
            raise ValueError(f"{size} examples do not fit a capacity of {self.capacity}")
        self._open(batch)
        for name, column in batch.items():
            self._rows[name][:size] = column.detach().to(self._rows[name].device)
        if self.policy == "balanced":
            self._keys[:size] = torch.randint(_DRAW, (size,), generator=self.generator, device=self.device)
        self._set_seen(size)

    def draw(self, size: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return ``size`` examples drawn without replacement, or all if there are fewer."""
        if not len(self):
            raise ValueError("the buffer is empty: there is nothing to draw")
        order = torch.randperm(len(self), generator=generator or self.generator, device=self.device)[:size]
        return {name: row.index_select(0, order) for name, row in self._rows.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly as without a stop, as tensors and plain data."""
        return {
            "capacity": self.capacity,
            "policy": self.policy,
            "seen": self.seen,
            "columns": {name: self[name].clone() for name in self._rows},
            "keys": self._keys[: len(self)].clone(),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; raise ``ValueError`` if it is of another buffer."""
        for name in ("capacity", "policy"):
            if state[name] != getattr(self, name):
                raise ValueError(f"the state has {name} {state[name]!r}; this buffer has {getattr(self, name)!r}")
        self._rows = {}
        if state["columns"]:
            self.replace(state["columns"])
            self._keys[: len(state["keys"])] = state["keys"].to(self._keys.device)
        self._set_seen(state["seen"])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())
        elif self.generator is not None:
            self.generator.manual_seed(self.seed)

    def _open(self, batch: Mapping[str, Tensor]) -> None:
        """On the first batch, fix the device and allocate the columns."""
        if self._rows:
            return
        if self.device is None:
            self.device = next(iter(batch.values())).device
        with torch.inference_mode(False):  # its tensors cannot be written to outside of it
            for name, column in batch.items():
                self._rows[name] = column.new_zeros((self.capacity + 1, *column.shape[1:]), device=self.device)
            keys = self.capacity + 1 if self.policy == "balanced" else 0
            self._keys = torch.zeros(keys, dtype=torch.int64, device=self.device)
            if self.device.type != "cpu":
                self._counter = torch.full((), self.seen, device=self.device)
        self.generator = self.generator or torch.Generator(self.device).manual_seed(self.seed)

    def _set_seen(self, seen: int) -> None:
        self.seen = seen
        if self._counter is not None:
            self._counter.fill_(seen)
