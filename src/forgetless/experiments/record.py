"""The record of a run: everything it measured, in one JSON file. Imports no torch."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from forgetless.config.extras import load_extra
from forgetless.experiments.labels import flat
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import write_whole

FORMAT = 1
NAME = "record.json"
CHECKPOINT = "checkpoint.safetensors"  # the file of an unfinished run, in the same folder


@dataclass(frozen=True)
class Record:
    """The settings and results of one run, as plain data."""

    id: str
    label: str
    settings: dict[str, Any]
    sources: dict[str, str]  # where each setting comes from
    accuracy: float  # percent, mean over tasks, class-IL
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
    share: float  # of the parameters that were chosen
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
    details: dict[str, Any] = field(default_factory=dict)  # what a study measures in addition
    boundaries: list[int] = field(default_factory=list)  # rows of epoch_changes where a shift was detected
    code: dict[str, str] = field(default_factory=dict)  # the checksum of the file of each part that is the user's
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)


# The type of each field, without parameters: ``dict`` for ``dict[str, float]``.
KINDS: dict[str, Any] = {name: get_origin(kind) or kind for name, kind in get_type_hints(Record).items()}


def folder(name: str | Path) -> Path:
    """Return the folder of a name or of an object store's URL, such as ``s3://bucket/runs``."""
    if not isinstance(name, str):
        return name
    if "://" not in name:
        return Path(name)
    remote: Path = load_extra("upath", "store", f"{name} needs universal-pathlib").UPath(name)
    return remote


def path(out: Path, settings: Settings) -> Path:
    """Return the file of a run's record in a folder."""
    return out / settings.id / NAME


def write(record: Record, file: Path) -> None:
    """Write a record."""
    write_json(record.to_dict(), file)


def write_json(values: dict[str, Any], file: Path) -> None:
    """Write plain data as JSON. The file is complete or absent, never partial."""
    write_whole((json.dumps(values, indent=1) + "\n").encode(), file)


def read(file: Path) -> Record:
    """Return the record in a file; raise ``ValueError`` that names the file if it holds none."""
    return _parse(file.read_bytes(), str(file))


def read_lines(file: Path) -> list[Record]:
    """Return the records of a JSON-lines file, which holds one record per line."""
    lines = file.read_bytes().splitlines()
    return [_parse(line, f"{file}, line {number},") for number, line in enumerate(lines, start=1)]


def _parse(text: bytes, source: str) -> Record:
    """Return the record in a text; raise ``ValueError`` that names its source if it holds none."""
    try:
        values = json.loads(text.decode())
        if values.get("format") != FORMAT:
            raise ValueError(f"format {values.get('format')!r}, this version reads {FORMAT}")
        record = Record(**values)
        _check(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{source} is not a record: {reason}") from None
    return record


def _check(record: Record) -> None:
    """Raise ``ValueError`` if the settings do not match the id, or if reports could not read a field."""
    for name, kind in KINDS.items():
        if kind in (str, list, dict) and not isinstance(value := getattr(record, name), kind):
            raise ValueError(f"{name} is {value!r}; it must be a {kind.__name__}")
    if "options" not in record.settings:
        raise ValueError("its settings have no options")
    if (actual := Settings.from_dict(record.settings).id) != record.id:
        raise ValueError(f"its settings belong to the run {actual}, but its id is {record.id}")
    if not record.accuracy_matrix or len(record.anytime) != len(record.accuracy_matrix):
        raise ValueError("it must have accuracies after every task")
    numbers = [record.accuracy, record.task_il_accuracy, record.share, record.seconds["total"], *record.anytime]
    numbers += [*record.flops.values(), *(value for row in record.accuracy_matrix for value in row)]
    optional = (record.forgetting, record.backward_transfer, record.forward_transfer, *record.sensitivity.values())
    numbers += [value for value in optional if value is not None]
    if not all(math.isfinite(value) for value in numbers):
        raise ValueError("it has a number that is not finite")


def same_numbers(first: Record, second: Record) -> bool:
    """Return whether two records of the same settings have the same results; times and machines may differ."""
    ignored: dict[str, Any] = {"sources": {}, "seconds": {}, "versions": {}, "engine": {}, "details": {}, "code": {}}
    return replace(first, device="", **ignored) == replace(second, device="", **ignored)


def read_run(out: Path, settings: Settings) -> Record:
    """Return the record of a run; raise ``ValueError`` if its file is corrupt or belongs to another run."""
    file = path(out, settings)
    try:
        record = read(file)
        if record.id != settings.id:
            raise ValueError(f"{file} is the record of another run, {record.id}")
    except ValueError as error:
        raise ValueError(f"{error}; remove it to do the run again") from None
    return record


def find(out: Path, settings: Settings) -> Record | None:
    """Return the record of a run, or ``None`` if there is none that can be read."""
    try:
        return read_run(out, settings)
    except (ValueError, OSError):
        return None


def read_files(files: Iterable[Path]) -> tuple[list[tuple[Path, Record]], list[str]]:
    """Return the records in some files, each with its file, and what is wrong with the other files."""
    records: list[tuple[Path, Record]] = []
    problems: list[str] = []
    for file in files:
        try:
            records += [(file, record) for record in (read_lines(file) if file.suffix == ".jsonl" else [read(file)])]
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return records, problems


def files(folder: Path) -> list[Path]:
    """Return the files with records: every record.json at any depth of a folder, every .jsonl at its top, or itself."""
    if folder.suffix == ".jsonl" and folder.is_file():
        return [folder]
    return sorted([*folder.glob(f"**/{NAME}"), *folder.glob("*.jsonl")])


def agreeing(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records whose tasks and groups are those of most records of their settings, and why others are not.

    Records of the same settings disagree if the code or the data changed between the runs.
    """

    def kind(record: Record) -> tuple[str, int, frozenset[str]]:
        return key_without_seed(record), len(record.accuracy_matrix[-1]), frozenset(record.sensitivity)

    counts = Counter(map(kind, records))
    usual: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: -counts[kind(record)]):
        usual.setdefault(key_without_seed(record), record)
    pairs = [(record, usual[key_without_seed(record)]) for record in records]
    problems = [
        f"{record.id}: the records {other.id} and {record.id} have the same settings but for the seed, and other tasks "
        "or groups of parameters: one is of code that was changed since; remove it"
        for record, other in pairs
        if kind(record) != kind(other)
    ]
    return [record for record, other in pairs if kind(record) == kind(other)], problems


def key_without_seed(record: Record) -> str:
    """Return a key that is the same for records that differ only in the seed."""
    return json.dumps(without_seed(record), sort_keys=True)


def without_seed(record: Record) -> dict[str, Any]:
    """Return all settings of a record but the seed, with those of the method among them."""
    return {name: value for name, value in flat(record.settings).items() if name != "seed"}
