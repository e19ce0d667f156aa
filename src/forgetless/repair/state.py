"""The entries of an FPF's state and their types, checked before anything is loaded."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

from torch import Tensor

from forgetless.compute.distributed import Processes

FORMAT = 2

# A type, or several; a dict names the entries of a mapping; a list holds the one kind of all values of a list or, as
# [keys, values], of a mapping.
SNAPSHOT = [str, Tensor]
ROWS = [[(int, Tensor)]]
STATE = {
    "processes": [int],
    "generator": Tensor,
    "buffer": {
        "capacity": int,
        "policy": str,
        "seen": int,
        "columns": [str, Tensor],
        "keys": Tensor,
        "generator": (Tensor, NoneType),
    },
}

SCHEDULE = {
    "groups": [str, [str]],
    "chosen": ([str], NoneType),
    "step": int,
    "finetunings": int,
    "shifts": [int],
    "window": int,
    "settings": {},
    "steps_of_window": int,
    "resting": [str],
    "tracker": {
        "task": int,
        "epoch": int,
        "last": (SNAPSHOT, NoneType),
        "first": [int, [(int, SNAPSHOT)]],
        "between_epochs": ROWS,
        "between_tasks": ROWS,
    },
    "detector": ({"recent": [[float]], "highest": [float]}, NoneType),
}
UPKEEP = {
    "step": int,
    "trained": int,
    "uncounted": int,
    "largest": int,
    "repairs": int,
    "undone": int,
    "shifts": [int],
    "held": int,
    "resting": [str],
    "anchor": SNAPSHOT,
    "settled": bool,
    "budget": float,
    "tuner": {"lr": float, "steps": int, "examples": int, "measured": int, "trusted": int},
    "recollection": {"known": [str, {"ids": Tensor, "logs": Tensor, "loss": float}], "newest": [str], "predicted": int},
}
KINDS = {"schedule": SCHEDULE, "upkeep": UPKEEP}
DISTINCT = {"strata": Tensor, "older": Tensor, "salt": int}  # of a buffer with this policy that holds examples


def check_state(state: Mapping[str, Any], kind: str, processes: Processes, distill: float) -> None:
    """Raise ``ValueError`` if the state has another format, wrong types, or belongs to another process or setting.

    ``kind`` is "schedule" or "upkeep".
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"the state is a {type(state).__name__}; it must be what FPF.state_dict() returned")
    if "parts" in state:
        raise ValueError(
            "the state has the entry parts, so it is that of a ShardedState; load it with "
            "ShardedState(fpf).load_state_dict(state)"
        )
    if "format" not in state:
        keys = ", ".join(map(repr, list(state)[:5])) + (", …" if len(state) > 5 else "")
        raise ValueError(f"the state has the keys {keys}; it must be what FPF.state_dict() returned, unchanged")
    if state["format"] != FORMAT:
        raise ValueError(f"the state has format {state['format']!r}; this version of forgetless reads {FORMAT}")
    other = next(name for name in KINDS if name != kind)
    if other in state and kind not in state:
        ways = {"schedule": "on the paper's schedule (every, steps, lr, threshold)", "upkeep": "within a budget"}
        raise ValueError(f"the state is of an FPF that repairs {ways[other]}; this one repairs {ways[kind]}")
    _check(state, STATE | {kind: KINDS[kind]})
    if state["buffer"]["policy"] == "distinct" and state["buffer"]["columns"]:
        _check(state["buffer"], DISTINCT, "buffer")
    rank, count = state["processes"]
    if (rank, count) != (processes.rank, processes.count):
        raise ValueError(
            f"the state is of process {rank} of {count}; this is process {processes.rank} of {processes.count}, which "
            "needs its own state"
        )
    columns = state["buffer"]["columns"]
    if columns and ("logits" in columns) != bool(distill):
        holds = "holds" if "logits" in columns else "does not hold"
        raise ValueError(f"distill is {distill}, but the buffer of the state {holds} logits")


def _check(state: Any, kind: Any, path: str = "") -> None:
    """Raise ``ValueError`` that names the first entry of ``state`` that is missing or has another type."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    matching = [option for option in kinds if isinstance(state, _outer(option))]
    if not matching:
        expected = " or ".join("None" if option is NoneType else _outer(option).__name__ for option in kinds)
        raise ValueError(f"the state's entry {path} has type {type(state).__name__}; it must be {expected}")
    option = matching[0]
    if isinstance(option, dict):
        for name, inner in option.items():
            if name not in state:
                raise ValueError(f"the state has no entry {_joined(path, name)}")
            _check(state[name], inner, _joined(path, name))
    elif isinstance(option, list) and len(option) == 2:
        for key, value in state.items():
            _check(key, option[0], f"{path} (a key)")
            _check(value, option[1], _joined(path, key))
    elif isinstance(option, list):
        for index, value in enumerate(state):
            _check(value, option[0], _joined(path, index))


def _outer(kind: Any) -> type:
    if isinstance(kind, dict) or (isinstance(kind, list) and len(kind) == 2):
        return Mapping
    return list if isinstance(kind, list) else kind


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
