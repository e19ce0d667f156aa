"""A small memory of the stream: named columns of equal length, held in their own dtype on one device.

A sampler decides which example goes where; ``Buffer`` holds the examples. A batch is added at once, with fixed shapes
and, on a GPU, without a GPU-to-CPU sync. Sequences of tokens may differ in length (``ragged``): they are stored without
their padding, and a draw is as long as its longest sequence.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from forgetless.memory.batch import size_of
from forgetless.memory.columns import Columns
from forgetless.memory.ragged import conformed, cut, unpadded
from forgetless.memory.samplers import Balanced, Reservoir, Sampler
from forgetless.memory.settings import Memory
from forgetless.memory.sketch import Sketch
from forgetless.memory.stage import Stage

HELD_OUT = 8  # every eighth slot is held out from repairs


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
        pad: The token with which ``input_ids`` are padded.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: str = Memory.policy,
        device: torch.device | str | None = None,
        seed: int = Memory.seed,
        generator: torch.Generator | None = None,
        pad: int = 0,
    ) -> None:
        settings = Memory(capacity=capacity, policy=policy, seed=seed)
        self.capacity, self.policy, self.seed = settings.capacity, settings.policy, settings.seed
        self.device = None if device is None else torch.device(device)  # None until the first batch
        self.pad = pad
        self._columns = Columns(capacity + 1, pad)  # the last row takes what is rejected
        self._sampler: Sampler | None = None  # None until the first batch
        self._stage: Stage | None = None  # where batches wait to be written
        self._period = 0
        self.generator = generator  # None until the first batch

    def __len__(self) -> int:
        """Return the number of examples held. With "distinct" on a GPU it is a GPU-to-CPU sync until that is full."""
        self._flush()
        return 0 if self._sampler is None else self._sampler.filled()

    def __repr__(self) -> str:
        columns = f": {', '.join(self.columns)}" if self.columns else ""
        return f"Buffer({len(self):,} of {self.capacity:,} examples, {self.policy}{columns})"

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of a column's filled rows."""
        if name not in self.columns:
            raise KeyError(f"no column named {name!r}; the columns are {', '.join(self.columns) or 'not known yet'}")
        return self._filled()[name]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; empty before the first batch."""
        return self._columns.names

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

    def rows_of(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch as rows without padding, or raise an error if it does not fit what is stored."""
        if self._columns.fits(batch):
            return dict(batch)
        rows = conformed(unpadded(batch, self.pad), self._columns.rows)
        self._columns.check(rows)
        if self.policy == "balanced" and ("y" not in rows or rows["y"].ndim != 1):
            y = f"y has shape {tuple(rows['y'].shape)}" if "y" in rows else f"the columns are {', '.join(rows)}"
            raise ValueError(f"policy 'balanced' needs the column 'y' with one class per example; {y}")
        return rows

    def add(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Offer a batch of examples, ``{column: tensor}``.

        With "distinct", batches wait to be written a few at a time, and ``remembered`` examples have shares of their
        own.
        """
        self.offer(self.rows_of(batch), remembered=remembered)

    def offer(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Do what ``add`` does with the rows that ``rows_of`` returned."""
        sampler, size = self._sampler or self._open(batch), size_of(batch)
        if remembered or not (self._stage and self._stage.add(batch, size)):
            self._flush()  # first, since the order counts
            if remembered or not (self._stage and self._stage.add(batch, size)):  # it is too large or too wide
                self.write(batch, remembered=remembered)
                self._stage = Stage(self._columns) if sampler.waits else None  # the columns may be wider now
        sampler.advance(size)

    @torch.no_grad()
    def write(self, batch: Mapping[str, Tensor], *, remembered: bool = False) -> None:
        """Do the part of ``add`` that runs on the device and can be captured; ``rows_of`` and ``advance`` cannot."""
        sampler, rows = self._open(batch), self._columns.rows
        batch = self._columns.fit(batch)
        placed = sampler.place(batch, remembered)
        if placed is None:
            return
        slots, chosen = placed
        for name, column in batch.items():
            column = column.detach().to(rows[name].device)
            rows[name].index_copy_(0, slots, column if chosen is None else column.index_select(0, chosen))

    def advance(self, size: int) -> None:
        """Count ``size`` more examples as seen."""
        assert self._sampler is not None
        self._sampler.advance(size)

    @torch.no_grad()
    def replace(self, batch: Mapping[str, Tensor]) -> None:
        """Replace everything held and seen by ``batch``, for memories that are rebuilt (herding)."""
        batch, size = self.rows_of(batch), size_of(batch)
        if size > self.capacity:
            raise ValueError(f"{size} examples do not fit a capacity of {self.capacity}")
        if self.policy == "distinct":
            self._forget()
            self.write(batch)
            self.advance(size)
            return
        sampler = self._open(batch)
        for name, column in self._columns.fit(batch).items():
            self._columns.rows[name][:size] = column.detach().to(self.device)
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
                raise ValueError("the buffer holds 1 example, which is held out; it must hold at least 2")
        order = torch.randperm(held, generator=generator or self.generator, device=self.device)[:size]
        if spare_held_out:
            order = order + order // (HELD_OUT - 1) + 1
        return cut({name: rows.index_select(0, order) for name, rows in self._columns.rows.items()})

    def held_out(self) -> dict[str, Tensor]:
        """Return the examples that repairs leave out and are judged by: those in every eighth slot, from the first."""
        return cut({name: rows[::HELD_OUT].clone() for name, rows in self._filled().items()})

    def part(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return the examples from the slot ``start`` up to ``stop``, which is not included."""
        return cut({name: rows[start:stop] for name, rows in self._filled().items()})

    def subset(self, chosen: Tensor | slice, **more: Tensor) -> "Buffer":
        """Return a buffer of these examples, given as a mask or slice, with more columns and the same generator."""
        rows = {name: rows[chosen] for name, rows in self._filled().items()}
        part = Buffer(len(next(iter(rows.values()))), device=self.device, generator=self.generator, pad=self.pad)
        part.replace(rows | more)
        return part

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly as without a stop, as tensors and plain data."""
        if self.device is not None and self.device.type == "cpu":
            self._flush()  # on a GPU, writing fewer batches in one go would change the slots
        sampler = self._sampler
        held = 0 if sampler is None else sampler.filled()
        staged = {} if self._stage is None else self._stage.rows()
        return {
            "capacity": self.capacity,
            "policy": self.policy,
            "seen": self.seen,
            "period": self._period,
            "columns": {name: rows[:held].clone() for name, rows in self._columns.rows.items()},
            "staged": [{name: rows.clone() for name, rows in staged.items()}] if staged else [],
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
            columns = self.rows_of(columns)  # a state of older versions has no lengths
            sampler = self._open(columns)
            if state["policy"] == self.policy:
                held, seen = sampler.load_state_dict(state), sampler.seen
                for name, rows in columns.items():
                    self._columns.rows[name][: len(held)] = rows.to(held.device)[held]
                for batch in state.get("staged", ()):
                    self.offer(self.rows_of(batch))
                sampler.seen = seen
            else:
                self.write(columns)
                sampler.advance(state["seen"])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())
        elif self.generator is not None:
            self.generator.manual_seed(self.seed)

    def _filled(self) -> dict[str, Tensor]:
        """Return the rows that hold examples."""
        held = len(self)  # first, since writing what waits may replace a column
        return {name: rows[:held] for name, rows in self._columns.rows.items()}

    def _forget(self) -> None:
        """Become empty."""
        self._columns, self._sampler, self._stage = Columns(self.capacity + 1, self.pad), None, None

    def _flush(self) -> None:
        """Write the batches that wait."""
        if self._stage is not None and (batch := self._stage.release()):
            self.write(batch)
            self.advance(0)  # they are counted already, but a length that was read before is out of date

    def _open(self, batch: Mapping[str, Tensor]) -> Sampler:
        """Return the sampler. On the first batch, fix the device, allocate the columns and make the sampler."""
        if self._sampler is not None:
            return self._sampler
        if self.device is None:
            self.device = next(iter(batch.values())).device
        self.generator = self.generator or torch.Generator(self.device).manual_seed(self.seed)
        self._columns.open(batch, self.device)
        with torch.inference_mode(False):  # its tensors cannot be written to outside of it
            self._sampler = _sampler(self.policy, self._columns.rows, self.generator, self.seed, self._period)
        self._stage = Stage(self._columns) if self._sampler.waits else None
        return self._sampler


def _sampler(policy: str, rows: Mapping[str, Tensor], generator: torch.Generator, seed: int, period: int) -> Sampler:
    if policy == "distinct":
        return Sketch(rows, generator, seed, period)
    return Balanced(rows, generator) if policy == "balanced" else Reservoir(rows, generator)
