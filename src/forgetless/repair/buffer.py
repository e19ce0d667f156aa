"""A small memory of the stream: named columns of equal length, held in their own dtype on one device.

A sampler decides which example goes where; ``Buffer`` holds the examples. A batch is added at once, with fixed shapes
and, on a GPU, without a GPU-to-CPU sync.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from forgetless.repair.samplers import Balanced, Reservoir, Sampler
from forgetless.repair.settings import Memory
from forgetless.repair.sketch import Sketch

HELD_OUT = 8  # every eighth slot is held out from repairs
_STAGED_BATCHES = 32  # that wait to be written in one go, with the kernel launches of one batch
_STAGED_BYTES = 2**24  # waiting saves little where batches are large


def _fits(batch: Mapping[str, Tensor], layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> bool:
    """Return whether ``batch`` has a known layout, which needs no other check: {column: (shape of a row, dtype)}."""
    sizes = set()
    for name, (shape, dtype) in layout.items():
        column = batch.get(name)
        if type(column) is not Tensor or column.dtype is not dtype or column.layout is not torch.strided:
            return False
        size, *row = column.shape or (0, None)
        if tuple(row) != shape:
            return False
        sizes.add(size)
    return len(sizes) == 1 and len(batch) == len(layout)


@final
class Buffer:
    """Hold at most ``capacity`` examples, each a row over named columns (such as ``x``, ``y`` and ``logits``).

        >>> buffer = Buffer(capacity=4)
        >>> buffer.add({"x": torch.rand(10, 3), "y": torch.arange(10)})
        >>> len(buffer), buffer.draw(2)["x"].shape
        (4, torch.Size([2, 3]))

    Args:
        capacity: The number of examples it holds.
        policy: "reservoir" (a uniform sample of all examples), "balanced" (equal shares of the classes in ``y``) or
            "distinct" (repeats count once; equal shares of the classes and of the periods that ``period`` numbers;
            examples without a label are rejected).
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
        self.device = None if device is None else torch.device(device)  # None until the first batch
        self._rows: dict[str, Tensor] = {}  # each (capacity + 1, …): the last row takes what is rejected
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}  # the shape and dtype of a row of each column
        self._sampler: Sampler | None = None  # None until the first batch
        self._staged: list[dict[str, Tensor]] = []  # copies of batches that wait to be written
        self._period = 0
        self.generator = generator  # None until the first batch

    def __len__(self) -> int:
        """Return the number of examples held. With "distinct" on a GPU it is a GPU-to-CPU sync until that is full."""
        self._flush()
        return 0 if self._sampler is None else self._sampler.filled()

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of a column's filled rows."""
        if name not in self._rows:
            raise KeyError(f"no column named {name!r}; the columns are {', '.join(self._rows) or 'not known yet'}")
        return self._rows[name][: len(self)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; empty before the first batch."""
        return tuple(self._rows)

    @property
    def seen(self) -> int:
        """The number of examples offered so far."""
        return 0 if self._sampler is None else self._sampler.seen

    @property
    def period(self) -> int:
        """The number of the present period of the stream. With "distinct", each period has its share of the slots."""
        return self._period

    @period.setter
    def period(self, period: int) -> None:
        self._flush()
        self._period = period
        if isinstance(self._sampler, Sketch):
            self._sampler.begin_period(period)

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """Raise an error if ``batch`` does not fit what is stored; change nothing."""
        if _fits(batch, self._layout):
            return
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

    def add(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Offer a batch of examples, ``{column: tensor}``.

        With "distinct", batches wait to be written a few at a time, and ``remembered`` examples have shares of their
        own.
        """
        self.check(batch)
        self.offer(batch, remembered=remembered)

    def offer(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Do what ``add`` does after ``check``."""
        sampler = self._open(batch)
        if not sampler.waits or remembered:
            self._flush()
            self.write(batch, remembered=remembered)
        else:
            copies = {name: column.to(self.device, copy=True) for name, column in batch.items()}
            for name, column in batch.items():
                if column.requires_grad:
                    copies[name] = copies[name].detach()
            self._staged.append(copies)
            nbytes = sum(column.nbytes for column in copies.values())
            if len(self._staged) >= _STAGED_BATCHES or len(self._staged) * nbytes >= _STAGED_BYTES:
                self._flush()
        sampler.advance(next(iter(batch.values())).shape[0])

    @torch.no_grad()
    def write(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Do the part of ``add`` that runs on the device and can be captured; ``check`` and ``advance`` cannot."""
        placed = self._open(batch).place(batch, remembered)
        if placed is None:
            return
        slots, chosen = placed
        for name, column in batch.items():
            column = column.detach().to(self._rows[name].device)
            self._rows[name].index_copy_(0, slots, column if chosen is None else column.index_select(0, chosen))

    def advance(self, size: int) -> None:
        """Count ``size`` more examples as seen."""
        assert self._sampler is not None
        self._sampler.advance(size)

    @torch.no_grad()
    def replace(self, batch: Mapping[str, Tensor]) -> None:
        """Replace everything held and seen by ``batch``, for memories that are rebuilt (herding)."""
        self.check(batch)
        size = len(next(iter(batch.values())))
        if size > self.capacity:
            raise ValueError(f"{size} examples do not fit a capacity of {self.capacity}")
        if self.policy == "distinct":
            self._forget()
            self.write(batch)
            self.advance(size)
            return
        sampler = self._open(batch)
        for name, column in batch.items():
            self._rows[name][:size] = column.detach().to(self._rows[name].device)
        sampler.restart(size)

    def draw(
        self, size: int, generator: torch.Generator | None = None, *, spare_held_out: bool = False
    ) -> dict[str, Tensor]:
        """Return ``size`` examples drawn without replacement, or all if there are fewer.

        With ``spare_held_out``, none of them is among those that ``held_out`` returns.
        """
        held = len(self)
        if not held:
            raise ValueError("the buffer is empty: there is nothing to draw")
        if spare_held_out:
            held -= -(-held // HELD_OUT)
            if not held:
                raise ValueError("the buffer holds 1 example, which is held out: there is nothing to draw")
        order = torch.randperm(held, generator=generator or self.generator, device=self.device)[:size]
        if spare_held_out:
            order = order + order // (HELD_OUT - 1) + 1
        return {name: row.index_select(0, order) for name, row in self._rows.items()}

    def held_out(self) -> dict[str, Tensor]:
        """Return the examples that repairs leave out and are judged by: those in every eighth slot, from the first."""
        return {name: self[name][::HELD_OUT].clone() for name in self._rows}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly as without a stop, as tensors and plain data."""
        if self.device is not None and self.device.type == "cpu":
            self._flush()  # on a GPU, writing fewer batches in one go would change the slots
        sampler = self._sampler
        held = 0 if sampler is None else sampler.filled()
        return {
            "capacity": self.capacity,
            "policy": self.policy,
            "seen": self.seen,
            "period": self._period,
            "columns": {name: rows[:held].clone() for name, rows in self._rows.items()},
            "staged": [dict(batch) for batch in self._staged],
            **({"keys": torch.empty(0)} if sampler is None else sampler.state_dict()),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, of a buffer of any capacity; ``ValueError`` if the policy differs.

        A smaller buffer keeps the examples that it would hold, of a reservoir a uniform sample. In a larger one of the
        policies "reservoir" and "balanced", the examples held count as all that were seen. A buffer with the policy
        "distinct" takes the examples of all policies.
        """
        if self.policy not in (state["policy"], "distinct"):
            raise ValueError(f"the state has policy {state['policy']!r}; this buffer has {self.policy!r}")
        columns = state["columns"]
        self._forget()
        self._period = state.get("period", 0)
        if columns:
            self.check(columns)
            sampler = self._open(columns)
            if state["policy"] == self.policy:
                held = sampler.load_state_dict(state)
                for name, rows in columns.items():
                    self._rows[name][: len(held)] = rows.to(held.device)[held]
                self._staged = [dict(batch) for batch in state.get("staged", ())]
            else:
                self.write(columns)
                sampler.advance(state["seen"])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())
        elif self.generator is not None:
            self.generator.manual_seed(self.seed)

    def _forget(self) -> None:
        """Become empty."""
        self._rows, self._layout, self._sampler, self._staged = {}, {}, None, []

    def _flush(self) -> None:
        """Write the rows that wait."""
        if self._staged:
            batches, self._staged = self._staged, []
            self.write({name: torch.cat([batch[name].to(self.device) for batch in batches]) for name in self._rows})

    def _open(self, batch: Mapping[str, Tensor]) -> Sampler:
        """Return the sampler. On the first batch, fix the device, allocate the columns and make the sampler."""
        if self._sampler is not None:
            return self._sampler
        if self.device is None:
            self.device = next(iter(batch.values())).device
        self.generator = self.generator or torch.Generator(self.device).manual_seed(self.seed)
        with torch.inference_mode(False):  # its tensors cannot be written to outside of it
            for name, column in batch.items():
                self._rows[name] = column.new_zeros((self.capacity + 1, *column.shape[1:]), device=self.device)
            self._layout = {name: (tuple(rows.shape[1:]), rows.dtype) for name, rows in self._rows.items()}
            if self.policy == "distinct":
                self._sampler = Sketch(self._rows, self.generator, self.seed, self._period)
            else:
                kind = Balanced if self.policy == "balanced" else Reservoir
                self._sampler = kind(self._rows, self.generator)
        return self._sampler
