"""A run that writes checkpoints and resumes from them."""

from __future__ import annotations

import inspect
import sys
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import torch

import forgetless
from forgetless.config import catalogue
from forgetless.data.stream import Stream
from forgetless.experiments import checkpoint
from forgetless.experiments.build import build_run
from forgetless.experiments.checkpoint import Stop
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import Schedule
from forgetless.training.events import Event, Stepped
from forgetless.training.plain import check_plain


@final
class CheckpointedRun:
    """A run that resumes from its checkpoint in ``out``, if there is one, and writes further ones by a schedule."""

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
        self._writer: checkpoint.Writer | None = None
        if isinstance(out, Path):  # an object store holds no checkpoints
            file = checkpoint.path(out, settings)
            about = describe(settings, stream, sources)
            with suppress(FileNotFoundError):
                state, stored = checkpoint.load(file)
                checkpoint.check(stored, about, file)
            self._writer = checkpoint.Writer(file, about, schedule or Schedule())
        self.run = build_run(settings, stream, eager=eager, state=state)

    def observe(self, event: Event, stop: Stop) -> bool:
        """Write a checkpoint if one is due; return whether the run must end here because of ``stop``."""
        asked = stop.since is not None
        if self._writer is None:
            return asked
        if not isinstance(event, Stepped) or not (asked or self._writer.due(event.step)):
            return False
        try:
            state = self.run.state_dict()
            check_plain(state or {})
        except TypeError as error:  # a user's method has a state that is not plain
            warnings.warn(f"no checkpoints are written: {error}", stacklevel=2)
            self._writer = None
            return asked
        except (RuntimeError, MemoryError) as error:  # there is no memory for a copy of the state
            self._writer.skip(event.step, error)
            return asked
        if state is None:  # the run cannot stop at this step
            return False
        self._writer.write(state, event.step, now=asked)
        return asked

    def finish(self) -> None:
        """Remove the checkpoint of a run that has its record."""
        if self._writer is not None:
            self._writer.remove()


def describe(settings: Settings, stream: Stream, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return what a checkpoint says about its run: settings, data, versions and the user's code."""
    return {
        "settings": settings.to_dict(), "data": stream.checksum, "torch": torch.__version__,
        "forgetless": forgetless.__version__, "sources": dict(sources), "code": user_code(settings),
    }  # fmt: skip


def user_code(settings: Settings) -> dict[str, str]:
    """Return the checksum of the file that defines each part of the run that is the user's, by the part's path."""
    checksums = {}
    for kind, name in settings.user_parts.items():
        part, (module, _) = catalogue.load(kind, name), catalogue.module_of(name)
        if inspect.isroutine(part) or inspect.isclass(part):  # it may be imported from another module
            module = part.__module__
        with suppress(OSError):  # a notebook's code is in no file
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            checksums[name] = f"{zlib.crc32(Path(file).read_bytes()):08x}"
    return checksums
