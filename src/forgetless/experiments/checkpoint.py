"""The state of a run on disk: one safetensors file, whole or not there. Nothing in it is ever executed.

Tensors are stored as such; everything else is JSON in the file's header, with a checksum of both. ``load`` gives back
what ``save`` was given, or says what is wrong with the file.
"""

from __future__ import annotations

import json
import signal
import time
import warnings
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack
from torch import Tensor

from forgetless.experiments.storage import Schedule, sweep_up, write_whole
from forgetless.training.plain import flatten, unflatten

FORMAT = 3
NAME = "checkpoint.safetensors"


class CheckpointError(ValueError):
    """A checkpoint cannot be used, and why."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and has left a checkpoint."""


class Stop:
    """Whether runs are to stop at the next step that can be kept; asked for by a signal, after ``listen``."""

    def __init__(self) -> None:
        self.since: float | None = None

    def listen(self, *, interrupts: bool = True) -> None:
        """Take SIGTERM and SIGINT as a wish to stop; one that comes a second or more after the first stops at once.

        ``interrupts=False``: let SIGINT be, for processes whose parent gets it too. Only in a process's main thread.
        """
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask if interrupts else signal.SIG_IGN)

    def _ask(self, number: int, frame: object) -> None:
        if self.since is None:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > 1:
            raise KeyboardInterrupt


def save(state: Mapping[str, Any], about: Mapping[str, Any], file: Path) -> None:
    """Write a state, and what it belongs to, in place of the one before."""
    found: dict[str, Tensor] = {}
    plain = flatten(state, found)
    tensors = {name: _alone(tensor) for name, tensor in found.items()}
    text = json.dumps({"format": FORMAT, "about": about, "state": plain})
    write_whole(pack(tensors, {"forgetless": text, "checksum": _checksum(text, tensors)}), file)


def load(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and what it belongs to; ``CheckpointError`` if the file is none, is torn, or was changed."""
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            header = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        text = header["forgetless"]
        if header["checksum"] != _checksum(text, tensors):
            raise CheckpointError("its checksum is wrong")
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise CheckpointError(f"it has format {values['format']!r}, this version reads {FORMAT}")
        return unflatten(values["state"], tensors), values["about"]
    except FileNotFoundError:
        raise
    except (SafetensorError, CheckpointError, KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{file} is no whole checkpoint: {reason}; remove it to start the run anew") from None


def check(about: Mapping[str, Any], expected: Mapping[str, Any], file: Path) -> None:
    """An error if a checkpoint belongs to another run or to other data than ``expected``."""
    found, wanted = about.get("settings"), expected["settings"]
    if not isinstance(found, dict) or found != wanted:
        found = found if isinstance(found, dict) else {}
        names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
        differing = ", ".join(f"{name} {found.get(name)!r}, here {wanted.get(name)!r}" for name in names)
        raise CheckpointError(f"{file} is of another run: {differing}; remove it to start this one anew")
    if about.get("data") != expected["data"]:
        raise CheckpointError(
            f"{file} was written with other data (checksum {about.get('data')}, now {expected['data']}): bring the "
            "data back, or remove the checkpoint to start anew"
        )
    for name, text in expected.get("code", {}).items():
        if about.get("code", {}).get(name, text) != text:
            said = f"{file} was written before the file of {name} was changed"
            warnings.warn(f"{said}: the run goes on, and is of both; remove it to start anew", stacklevel=2)
    for name, differs in (("torch", "its last digits may differ"), ("forgetless", "it may end with other numbers")):
        if about.get(name) != expected[name]:
            said = f"{file} was written with {name} {about.get(name)}, this is {expected[name]}"
            warnings.warn(f"{said}: the run goes on, but {differs}", stacklevel=2)


class Writer:
    """Writes the checkpoints of one run by its schedule, in a thread; the run goes on meanwhile."""

    def __init__(self, file: Path, about: Mapping[str, Any], schedule: Schedule) -> None:
        self.file, self._about, self._schedule = file, dict(about), schedule
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._step: int | None = None
        self._time = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether it is time for one."""
        self._settle(wait=False)
        if self._step is None:
            self._step = step - 1
        steps, seconds = self._schedule.steps, self._schedule.seconds
        late = steps is not None and step - self._step >= steps
        return late or (seconds is not None and time.monotonic() - self._time >= seconds)

    def write(self, state: Mapping[str, Any], step: int, *, now: bool = False) -> None:
        """``now``: be done when this returns, and an error if it could not be written; otherwise that is warned of."""
        self._settle(wait=True)
        self._step, self._time = step, time.monotonic()
        self._pending = self._thread.submit(self._save, state)
        if now:
            pending, self._pending = self._pending, None
            pending.result()

    def skip(self, step: int, error: Exception) -> None:
        """There is none this time; the next is due as after one."""
        self._step, self._time = step, time.monotonic()
        warnings.warn(f"no checkpoint was written: {error}", stacklevel=3)

    def close(self, *, remove: bool = False) -> None:
        """``remove``: the run has ended, and its checkpoint is no longer needed."""
        self._settle(wait=True)
        self._thread.shutdown()
        if remove:
            with suppress(OSError):
                self.file.unlink(missing_ok=True)
                sweep_up(self.file.parent)

    def _save(self, state: Mapping[str, Any]) -> None:
        """Unless a weight is NaN, from which nothing could go on: the checkpoint before stays."""
        weights = state.get("network", {}).values()
        if not any(bool(weight.cpu().isnan().any()) for weight in weights if weight.is_floating_point()):
            save(state, self._about, self.file)

    def _settle(self, *, wait: bool) -> None:
        if self._pending is not None and (wait or self._pending.done()):
            pending, self._pending = self._pending, None
            try:
                pending.result()
            except (OSError, RuntimeError, MemoryError) as error:  # a full disk: the run's record may still fit
                warnings.warn(f"no checkpoint was written: {error}", stacklevel=3)


def _alone(tensor: Tensor) -> Tensor:
    """On the host, in memory of its own."""
    made = tensor.detach().cpu().contiguous()
    return made.clone() if made.untyped_storage().nbytes() != made.nbytes else made


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(_bytes(tensor), found)
    return f"{found:08x}"


def _bytes(tensor: Tensor) -> Any:
    """A view of its bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
