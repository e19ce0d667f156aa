"""Checkpoints: the state of a run in one safetensors file, and runs that resume from it.

Loading a file never executes anything in it. Tensors are stored as such. Everything else is JSON in the header, with a
checksum of both.
"""

import json
import signal
import time
import warnings
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack
from torch import Tensor

import forgetless
from forgetless.data.stream import Stream
from forgetless.experiments.build import build_run
from forgetless.experiments.finished import changed_code, user_code
from forgetless.experiments.record import CHECKPOINT
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import Schedule, sweep_up, write_whole
from forgetless.training.events import Event, Stepped
from forgetless.training.plain import flatten, unflatten

FORMAT = 5


class CheckpointError(ValueError):
    """A checkpoint cannot be used."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has written a checkpoint."""


class Stop:
    """Whether runs must stop at the next step that has a state. After ``listen``, signals ask for it."""

    def __init__(self) -> None:
        self.since: float | None = None  # the time of the request

    def listen(self, *, interrupts: bool = True) -> None:
        """Take SIGTERM and SIGINT as a request to stop; a second signal a second later stops at once.

        Without ``interrupts``, SIGINT is ignored, because the parent process also receives it.
        """
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask if interrupts else signal.SIG_IGN)

    def _ask(self, number: int, frame: object) -> None:
        if self.since is not None and time.monotonic() - self.since > 1:
            raise KeyboardInterrupt
        self.since = self.since or time.monotonic()


def path(out: Path, settings: Settings) -> Path:
    """Return the file of a run's checkpoint in a folder of records."""
    return out / settings.id / CHECKPOINT


def save(state: Mapping[str, Any], about: Mapping[str, Any], file: Path) -> None:
    """Write a state and what it belongs to. It replaces the checkpoint before."""
    tensors: dict[str, Tensor] = {}
    plain = flatten(state, tensors)
    tensors = {name: _detach(tensor) for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, "about": about, "state": plain})
    write_whole(pack(tensors, {"forgetless": text, "checksum": _checksum(text, tensors)}), file)


def load(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state in a file and what it belongs to; raise ``CheckpointError`` if the file is corrupt."""
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            header = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        text = header.get("forgetless", "")
        if header.get("checksum") != _checksum(text, tensors):
            raise CheckpointError("its checksum is wrong")
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise CheckpointError(f"it has format {values['format']!r}, this version reads {FORMAT}")
        return unflatten(values["state"], tensors), values["about"]
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"the checkpoint {file} is corrupt: {error}; remove it to start again") from None


def check(about: Mapping[str, Any], expected: Mapping[str, Any], file: Path) -> None:
    """Raise ``CheckpointError`` if a checkpoint belongs to another run or to other data; warn about other versions.

    ``about`` describes the checkpoint, as ``load`` returns it, and ``expected`` the run that is to resume.
    """
    stored, wanted = about["settings"], expected["settings"]
    if stored != wanted:
        names = [name for name in {**wanted, **stored} if stored.get(name) != wanted.get(name)]
        differing = ", ".join(f"{name} {stored.get(name)!r}, here {wanted.get(name)!r}" for name in names)
        raise CheckpointError(f"{file} belongs to another run: {differing}; remove it to start again")
    if about["data"] != expected["data"]:
        message = f"{file} was written with other data (checksum {about['data']}, now {expected['data']})"
        raise CheckpointError(f"{message}: restore the data, or remove the checkpoint to start again")
    for name, risk in (("torch", "last digits"), ("forgetless", "results")):
        if about[name] != expected[name]:
            message = f"{file} was written with {name} {about[name]}, this is {expected[name]}"
            warnings.warn(f"{message}: the run resumes, but its {risk} may differ", stacklevel=2)


@final
class CheckpointedRun:
    """A run that resumes from its checkpoint in ``out``, if there is one, and writes further ones by a schedule.

    A thread writes them while the run continues.
    """

    def __init__(
        self,
        settings: Settings,
        stream: Stream,
        out: Path | None,
        schedule: Schedule | None,
        *,
        sources: Mapping[str, str],
        eager: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the checkpoint and build the run, which starts from ``state`` where there is no checkpoint."""
        self.settings, self.sources, self.code = settings, sources, user_code(settings)
        self._file = path(out, settings) if isinstance(out, Path) else None  # an object store holds no checkpoints
        self._schedule = schedule or Schedule()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._step: int | None = None
        self._time = time.monotonic()
        if self._file is not None:
            self._about = describe(settings, stream, sources)
            with suppress(FileNotFoundError):
                loaded, stored = load(self._file)
                if changed := changed_code(stored["code"], settings):
                    message = f"{' and '.join(changed)} changed since the checkpoint was written"
                    warnings.warn(f"{message}: the run starts again", stacklevel=2)
                else:
                    check(stored, self._about, self._file)
                    state = loaded
        self.run = build_run(settings, stream, eager=eager, state=state)

    def observe(self, event: Event, stop: Stop) -> bool:
        """Write a checkpoint if one is due; return whether the run must end here because of ``stop``.

        A failure becomes a warning. The last checkpoint, which ``stop`` asks for, is written at once, or an error is
        raised.
        """
        asked = stop.since is not None
        if self._file is None:
            return asked
        if not isinstance(event, Stepped) or not (asked or self._due(event.step)):
            return False
        try:
            state = self.run.state_dict()
            flatten(state, {})
        except TypeError as error:  # a user's method has a state that is not plain
            warnings.warn(f"no checkpoints are written: {error}", stacklevel=2)
            self._file = None
            return asked
        except (RuntimeError, MemoryError) as error:  # there is no memory for a copy of the state
            warnings.warn(f"no checkpoint was written: {error}", stacklevel=2)
        else:
            if state is None:  # the run cannot stop at this step
                return False
            self._settle(wait=True)
            if asked:
                self._save(state, self._file)
            else:
                self._pending = self._thread.submit(self._save, state, self._file)
        self._step, self._time = event.step, time.monotonic()
        return asked

    def finish(self) -> None:
        """Wait for the last checkpoint, and remove it because the run has its record."""
        self._settle(wait=True)
        self._thread.shutdown()
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
                sweep_up(self._file.parent)

    def _due(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step."""
        self._settle(wait=False)
        if self._step is None:
            self._step = step - 1
        steps, seconds = self._schedule.steps, self._schedule.seconds
        late = steps is not None and step - self._step >= steps
        return late or (seconds is not None and time.monotonic() - self._time >= seconds)

    def _save(self, state: Mapping[str, Any], file: Path) -> None:
        """Write a state, unless a weight is NaN: no run could resume from it, so the checkpoint before stays."""
        weights = state.get("network", {}).values()
        if not any(bool(weight.cpu().isnan().any()) for weight in weights if weight.is_floating_point()):
            save(state, self._about, file)

    def _settle(self, *, wait: bool) -> None:
        """Warn if the checkpoint under way has failed; with ``wait``, wait for it first."""
        if self._pending is not None and (wait or self._pending.done()):
            pending, self._pending = self._pending, None
            try:
                pending.result()
            except (OSError, RuntimeError, MemoryError) as error:  # a full disk, say: the record may still fit
                warnings.warn(f"no checkpoint was written: {error}", stacklevel=3)


def describe(settings: Settings, stream: Stream, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return what a checkpoint says about its run: settings, data, versions and the user's code."""
    return {
        "settings": settings.to_dict(), "data": stream.checksum, "torch": torch.__version__,
        "forgetless": forgetless.__version__, "sources": dict(sources), "code": user_code(settings),
    }  # fmt: skip


def _detach(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU that does not share its memory with a larger one."""
    copy = tensor.detach().cpu().contiguous()
    return copy.clone() if copy.untyped_storage().nbytes() != copy.nbytes else copy


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of a text and of tensors with their names, types and shapes."""
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"
