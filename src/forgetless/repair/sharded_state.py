"""The state of an ``FPF`` over all its processes, for ``torch.distributed.checkpoint``.

Snapshots of the weights are split like the network's parameters, so that a checkpoint can be read by another number of
processes. Everything else is one entry that holds what each process has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from forgetless.compute.distributed import Processes
from forgetless.compute.modules import unwrap
from forgetless.compute.shards import reshard, shard, with_shard
from forgetless.memory.buffer import HELD_OUT
from forgetless.memory.ragged import concatenated

State = dict[str, Any]


class Observer(Protocol):
    """An ``FPF``."""

    model: nn.Module
    processes: Processes

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@final
class ShardedState:
    """The state of an ``FPF`` over all its processes, as ``torch.distributed.checkpoint`` saves and loads it.

        >>> from forgetless import FPF
        >>> fpf = FPF(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        >>> sorted(ShardedState(fpf).state_dict())
        ['parts', 'weights']

    All processes must save together and load together. There may be more or fewer of them when it is loaded: the
    examples of the buffers are then dealt out again, in blocks of eight, so that held-out examples stay held out.

    Args:
        fpf: The ``FPF`` of this process.
    """

    def __init__(self, fpf: Observer) -> None:
        self._fpf = fpf

    def state_dict(self) -> State:
        """Return the snapshots of the weights, and the rest of the state of every process."""
        state = _copied(self._fpf.state_dict())
        snapshots = _snapshots(state)
        network = unwrap(self._fpf.model)
        reshard(network)
        known = next(iter(snapshots.values()))
        parameters = {name: parameter for name, parameter in network.named_parameters() if name in known}
        weights: dict[str, dict[str, Tensor]] = {}
        for key, snapshot in snapshots.items():
            # A checkpoint is read into tensors that exist. Snapshots that this FPF does not have yet are zeros.
            values = {name: snapshot.get(name) for name in parameters}
            filled = {n: torch.zeros_like(shard(parameters[n])) if v is None else v for n, v in values.items()}
            weights[key] = {name: with_shard(parameters[name], value) for name, value in filled.items()}
            snapshot.update((name, None) for name in snapshot if name in parameters)
        return {"weights": weights, "parts": tuple(self._fpf.processes.gather(state))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; load the network separately."""
        if missing := [key for key in ("weights", "parts") if key not in state]:
            raise ValueError(f"the state has no entry {missing[0]}; give that of ShardedState(fpf).state_dict()")
        if not state["parts"]:
            raise ValueError(
                f"the state's entry parts is {state['parts']}; it must hold the state of at least one process, as "
                "ShardedState(fpf).state_dict() returns it"
            )
        own = _part(state["parts"], self._fpf)
        for key, snapshot in _snapshots(own).items():
            weights = state["weights"].get(key, {})
            if missing := [name for name, value in snapshot.items() if value is None and name not in weights]:
                raise ValueError(f"the state has no entry weights.{key}.{missing[0]}: a shard is missing")
            snapshot.update((name, shard(weights[name])) for name, value in snapshot.items() if value is None)
        self._fpf.load_state_dict(own)


def _snapshots(state: State) -> dict[str, dict[str, Tensor | None]]:
    """Return the snapshots of weights in a state; one that is not there yet is empty."""
    if "upkeep" in state:
        return {"anchor": state["upkeep"]["anchor"]}
    tracker = state["schedule"]["tracker"]
    first = [snapshot for _, snapshot in tracker["first"].values()]  # an FPF compares one epoch
    return {"last": tracker["last"], "first": first[0] if first else {}}


def _part(parts: Sequence[State], fpf: Observer) -> State:
    """Return the state of this process, from the states of all processes that saved."""
    rank, count = fpf.processes.rank, fpf.processes.count
    copies = [_copied(part) for part in parts]
    if len(parts) == count:
        return copies[rank]
    own, saved = copies[0], copies[rank] if rank < len(parts) else None
    own["processes"] = [rank, count]
    own["generator"] = (saved or fpf.state_dict())["generator"]
    own["buffer"] = dealt([part["buffer"] for part in copies], rank, count)
    own["buffer"]["generator"] = saved and saved["buffer"]["generator"]
    if upkeep := own.get("upkeep"):
        upkeep["uncounted"] = 0 if rank else sum(part["upkeep"]["uncounted"] for part in copies)
        upkeep["largest"] = -(-sum(part["upkeep"]["largest"] for part in copies) // count)
        for part in copies[1:]:  # what is not in this process's buffer is dropped later
            upkeep["recollection"]["known"] |= part["upkeep"]["recollection"]["known"]
            upkeep["recollection"]["newest"] += part["upkeep"]["recollection"]["newest"]
    return own


def _copied(state: State) -> State:
    """Return a state with its own mappings and lists, but the same tensors."""
    copied: State = tree_map(lambda value: value, state)
    return copied


def dealt(buffers: Sequence[State], rank: int, count: int) -> State:
    """Return the part of a process in what several buffers hold, as the state of one."""
    filled = [buffer for buffer in buffers if buffer["columns"]]
    seen = sum(buffer["seen"] for buffer in buffers)
    state: State = (filled or buffers)[0] | {
        "capacity": sum(buffer["capacity"] for buffer in buffers),
        "seen": seen // count + (rank < seen % count),
        "period": max(buffer["period"] for buffer in buffers),
        "staged": [
            {name: rows[rank::count] for name, rows in batch.items()}
            for buffer in buffers
            for batch in buffer["staged"]
        ],
    }
    if not filled:
        return state
    sizes = [len(next(iter(buffer["columns"].values()))) for buffer in filled]
    rows = torch.arange(sum(sizes)).split(sizes)
    blocks = [(len(block) < HELD_OUT, n, block) for part in rows for n, block in enumerate(part.split(HELD_OUT))]
    blocks.sort(key=lambda block: block[:2])  # the incomplete ones last, since they shift those after them
    own = torch.cat([block for *_, block in blocks][rank::count] or [rows[0][:0]])
    columns = {key: torch.cat([buffer[key] for buffer in filled]) for key in ("keys", "strata") if key in state}
    if "strata" in columns:
        own = own[_first_of_each(columns["keys"][own])]  # an example that two processes observed
        state["older"] = torch.cat([buffer["older"] for buffer in filled]).unique()
    state |= {key: column[own] if len(column) else column for key, column in columns.items()}
    pool = concatenated([buffer["columns"] for buffer in filled])
    return state | {"columns": {name: column[own] for name, column in pool.items()}}


def _first_of_each(keys: Tensor) -> Tensor:
    """Return where each key occurs first, in order."""
    places: dict[int, int] = {}
    for place, key in enumerate(keys.tolist()):
        places.setdefault(key, place)
    return torch.tensor(list(places.values()), dtype=torch.int64)
