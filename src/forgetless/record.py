"""What a run leaves: one JSON file, whole or not there at all. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forgetless.config import Settings
from forgetless.storage import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Record:
    id: str
    label: str
    settings: dict[str, Any]
    sources: dict[str, str]  # where each setting came from
    accuracy: float  # percent; mean over tasks, class-IL (domain-IL: over all classes)
    task_il_accuracy: float
    anytime: list[float]
    forgetting: float | None
    backward_transfer: float | None
    forward_transfer: float | None
    accuracy_matrix: list[list[float]]
    task_il_matrix: list[list[float]]
    untrained: list[float]
    before_finetuning: list[float] | None
    sensitivity: dict[str, float | None]
    chosen: list[str]
    share: float  # of the parameters, that is chosen
    parameters: dict[str, int]
    losses: list[list[float]]
    epoch_changes: list[list[Any]]
    task_changes: list[list[Any]]
    finetunings: list[dict[str, Any]]
    flops: dict[str, int]
    seconds: dict[str, float]
    steps: int
    versions: dict[str, str]
    device: str
    engine: dict[str, Any] = field(default_factory=dict)  # precision, whether captured, peak memory or threads
    tensor_changes: dict[str, list[float]] = field(default_factory=dict)  # between tasks, mean over epochs, 4 digits
    details: dict[str, Any] = field(default_factory=dict)  # of runs that were watched closer
    boundaries: list[int] = field(default_factory=list)  # rows of epoch_changes where the changes alone tell a new task
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def folder(name: str | Path) -> Path:
    """A folder by its name, or by the URL of an object store (``s3://bucket/runs``), which behaves like one."""
    if "://" not in str(name):
        return Path(name)
    try:
        from upath import UPath
    except ImportError:
        raise ImportError(f"{name} needs universal-pathlib: pip install 'forgetless[store]'") from None
    made: Any = UPath(str(name))
    return made  # type: ignore[no-any-return]


def path(out: Path, settings: Settings) -> Path:
    return out / settings.id / "record.json"


def write(record: Record, file: Path) -> None:
    write_json(record.to_dict(), file)


def write_json(values: dict[str, Any], file: Path) -> None:
    write_whole((json.dumps(values, indent=1) + "\n").encode(), file)


def read(file: Path) -> Record:
    """A record; an error that names the file if it is none."""
    try:
        values = json.loads(file.read_text())
        if values.get("format") != FORMAT:
            raise ValueError(f"format {values.get('format')!r}, this version reads {FORMAT}")
        return Record(**values)
    except (UnicodeDecodeError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{file} is not a record: {error}") from None


def find(out: Path, settings: Settings) -> Record | None:
    """The record of a run, if there is one that can be read."""
    file = path(out, settings)
    found, _ = read_those([file] if file.exists() else [])
    return found[0][1] if found else None


def read_those(files: Iterable[Path]) -> tuple[list[tuple[Path, Record]], list[str]]:
    """The records among some files, and of those that are none, what is wrong with them."""
    found, problems = [], []
    for file in files:
        try:
            found.append((file, read(file)))
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return found, problems


def files(folder: Path) -> list[Path]:
    """Those of the records in a folder, at any depth."""
    return sorted(folder.glob("**/record.json"))
