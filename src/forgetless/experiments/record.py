"""What a run leaves: one JSON file, whole or not there at all. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import write_whole

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
    return _parse(file.read_bytes(), str(file))


def read_lines(file: Path) -> list[Record]:
    """Return the records of a JSON-lines file, which holds one record per line."""
    lines = file.read_bytes().splitlines()
    return [_parse(line, f"{file}, line {number},") for number, line in enumerate(lines, start=1)]


def _parse(text: bytes, source: str) -> Record:
    """Return the record in a text; raise an error that names its source if it is none."""
    try:
        values = json.loads(text.decode())
        if values.get("format") != FORMAT:
            raise ValueError(f"format {values.get('format')!r}, this version reads {FORMAT}")
        made = Record(**values)
        _check(made)
        return made
    except (UnicodeDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{source} is not a record: {reason}") from None


@cache
def _kinds() -> dict[str, Any]:
    """What each field is: of ``dict[str, float]`` that it is a dict."""
    return {name: get_origin(kind) or kind for name, kind in get_type_hints(Record).items()}


def _check(made: Record) -> None:
    """An error if its settings are not those of its id, or if what pages are made of is of another kind."""
    for name, kind in _kinds().items():
        if kind in (str, list, dict) and not isinstance(value := getattr(made, name), kind):
            raise ValueError(f"{name} is {value!r}")
    if "options" not in made.settings:
        raise ValueError("its settings have no options")
    if (told := Settings.from_dict(made.settings).id) != made.id:
        raise ValueError(f"its settings are those of the run {told}, its id is {made.id}")
    matrix = [value for row in made.accuracy_matrix for value in row]
    numbers = [made.accuracy, made.task_il_accuracy, made.share, made.seconds["total"], *made.flops.values()]
    maybe = (made.forgetting, made.backward_transfer, made.forward_transfer, *made.sensitivity.values())
    numbers += [value for value in maybe if value is not None]
    if not matrix or len(made.anytime) != len(made.accuracy_matrix):
        raise ValueError("it has no accuracies, or not one after each task")
    if not all(math.isfinite(value) for value in (*numbers, *matrix, *made.anytime)):
        raise ValueError("a number in it is not finite")
    if min(made.flops.values(), default=0) < 0:
        raise ValueError(f"its FLOPs are {made.flops}")


def same_numbers(one: Record, other: Record) -> bool:
    """Whether records of the same settings say the same, in whatever time and on whatever machine they were made."""
    about = ("sources", "seconds", "versions", "device", "engine", "details")
    texts = [
        json.dumps({name: value for name, value in made.to_dict().items() if name not in about}, sort_keys=True)
        for made in (one, other)
    ]
    return texts[0] == texts[1]


def of(out: Path, settings: Settings) -> Record:
    """The record of a run; an error if the file in its place is none, or that of another."""
    file = path(out, settings)
    try:
        made = read(file)
        if made.id != settings.id:
            raise ValueError(f"{file} is the record of another run, {made.id}")
    except ValueError as error:
        raise ValueError(f"{error}; remove it to do the run again") from None
    return made


def find(out: Path, settings: Settings) -> Record | None:
    """The record of a run, if there is one that can be read."""
    try:
        return of(out, settings)
    except (ValueError, OSError):
        return None


def read_those(files: Iterable[Path]) -> tuple[list[tuple[Path, Record]], list[str]]:
    """The records among some files, and of those that are none, what is wrong with them."""
    found, problems = [], []
    for file in files:
        try:
            records = read_lines(file) if file.suffix == ".jsonl" else [read(file)]
            found += [(file, record) for record in records]
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return found, problems


def files(folder: Path) -> list[Path]:
    """Return the files with records in a folder: every record.json at any depth, every .jsonl at its top.

    A .jsonl file itself stands for its own records.
    """
    if folder.suffix == ".jsonl" and folder.is_file():
        return [folder]
    return sorted([*folder.glob("**/record.json"), *folder.glob("*.jsonl")])


def agreeing(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Those that have the tasks and groups of most of their settings, and of the others why they are left out."""
    alike: dict[str, list[list[Record]]] = {}
    for record in records:
        sets = alike.setdefault(way_of(record), [])
        fitting = next((members for members in sets if mismatch(members[0], record) is None), None)
        if fitting is None:
            sets.append(fitting := [])
        fitting.append(record)
    most = {way: max(sets, key=len)[0] for way, sets in alike.items()}
    found = [(record, mismatch(most[way_of(record)], record)) for record in records]
    return [record for record, problem in found if problem is None], [
        f"{record.id}: {problem}" for record, problem in found if problem is not None
    ]


def mismatch(first: Record, other: Record) -> str | None:
    """What is wrong where records of the same settings have other tasks or groups: of different code or data."""
    same_tasks = len(other.accuracy_matrix[-1]) == len(first.accuracy_matrix[-1])
    if same_tasks and other.sensitivity.keys() == first.sensitivity.keys():
        return None
    return (
        f"the records {first.id} and {other.id} have the same settings but for the seed, and other tasks or groups of "
        "parameters: one is of code that was changed since; remove it"
    )


def way_of(record: Record) -> str:
    return json.dumps(without_seed(record), sort_keys=True)


def without_seed(record: Record) -> dict[str, Any]:
    """All settings but the seed, a method's own among them."""
    own: dict[str, Any] = {name: value for name, value in record.settings.items() if name not in ("seed", "options")}
    return {**own, **record.settings["options"]}
