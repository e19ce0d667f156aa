"""Every table and figure of the paper as runs, beside what the paper says. The items are in ``studies``. No torch.

An item gives lines: a name, the runs behind it, one a seed, and the number of the paper it is compared with, if there
is one. Runs are those of a sweep, so what has a record is not done again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import STREAMS
from forgetless.experiments import record
from forgetless.experiments.presets import GRIDS, STREAM_DEFAULTS, preset
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.sweep import Planned
from forgetless.paper.published import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 5  # the paper's
QUICK, QUICK_SEEDS = "seq-digits", 2  # the stream of a quick reproduction, and how often
DIGITS = (290, 286, 286, 304, 271)
IMAGES: Mapping[str, tuple[int, ...]] = {  # training images of each task of a stream
    "seq-digits": DIGITS, "forgetless.data.benchmarks:large_digits": DIGITS,
    "seq-mnist": (12_665, 12_089, 11_263, 12_183, 11_800), "rot-mnist": (60_000,) * 20,
    "seq-organamnist": (4703, 9254, 14_012, 6592), "seq-pathmnist": (29_235, 18_407, 20_068, 22_286),
    "seq-cifar10": (10_000,) * 5, "seq-tinyimagenet": (10_000,) * 10, "seq-pacs": (3143, 1875, 1638, 1337),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What of an item is wanted, and how."""

    stream: str | None = None
    buffer: int | None = None
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    quick: bool = False
    device: str = "cpu"

    @property
    def seed_count(self) -> int:
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)


@dataclass(frozen=True)
class Line:
    """A row of a table or a point of a figure: its runs, one a seed, and what the paper says of it."""

    name: str
    runs: tuple[Planned, ...]
    target: Target | None = None
    metric: str = "accuracy"
    at: tuple[Any, ...] = ()  # where a figure puts it

    @property
    def stream(self) -> str:
        return self.runs[0].settings.stream


@dataclass(frozen=True)
class Measured:
    line: Line
    records: tuple[Record, ...]

    @property
    def values(self) -> list[float]:
        return [value(record, self.line.metric) for record in self.records]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def std(self) -> float:
        return stdev(self.values) if len(self.records) > 1 else 0.0

    @property
    def shown(self) -> str:
        """The mean, and the deviation where there are several runs."""
        return f"{self.mean:.2f} ± {self.std:.2f}" if len(self.records) > 1 else f"{self.mean:.2f}"

    @property
    def tflops(self) -> float:
        return mean(sum(record.flops.values()) for record in self.records) / 1e12

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.line.target is None else self.mean - self.line.target.mean

    @property
    def errors(self) -> float | None:
        """The difference in standard errors of it, the paper's means being over five runs; None where none is known."""
        target, difference = self.line.target, self.difference
        if target is None or target.std is None or difference is None or len(self.records) < 2:
            return None
        error = math.sqrt(target.std**2 / SEEDS + self.std**2 / len(self.records))
        return difference / error if error else None


@dataclass(frozen=True)
class Finding:
    """Something the paper says, whether it holds here, and the numbers."""

    claim: str
    holds: bool
    numbers: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.claim} ({self.numbers})"


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    where: str
    summary: str
    lines: Callable[[Options], list[Line]]
    findings: Callable[[Sequence[Measured]], list[Finding]]
    draw: Callable[[Sequence[Measured]], Mapping[str, Figure]]
    tables: tuple[str, ...] = ()  # of ``targets`` that it is compared with
    filters: bool = False  # whether its runs are watched filter by filter
    without: tuple[str, ...] = ()  # options that say nothing for it

    def check(self, name: str, options: Options) -> None:
        """An error if an option is given that would do nothing."""
        for option in self.without:
            if value := getattr(options, option):
                given = ",".join(value) if isinstance(value, tuple) else value
                raise ValueError(f"{option} is {given}, but {name} has no {option} to choose from: leave it out")


def value(record: Record, metric: str) -> float:
    """What a metric of ``targets`` is in a record."""
    if metric == "accuracy":
        return record.accuracy
    if metric.startswith("accuracy_after_task_"):
        return record.anytime[int(metric.rpartition("_")[2]) - 1]
    if metric == "finetune_tflops":
        return record.flops.get("finetune", 0) / 1e12
    if metric == "train_tflops":
        return sum(record.flops.values()) / 1e12
    raise ValueError(f"metric is {metric!r}, which records do not have")


def planned(stream: str, method: str, given: Mapping[str, Any], options: Options) -> tuple[Planned, ...]:
    """One run for each seed."""
    values = {"device": options.device, **given}
    return tuple(Planned(*resolve(stream, method, {**values, "seed": seed})) for seed in range(options.seed_count))


def network(stream: str) -> str:
    """That of the runs on a stream, where no other is given."""
    return str(STREAM_DEFAULTS.get(stream, {}).get("network", Settings.network))


def scenario(stream: str) -> str | None:
    """Of a stream of forgetless, class or domain; of a user's it is not known here."""
    path = STREAMS[stream].path if stream in STREAMS else stream
    if not path.startswith("forgetless.data.benchmarks:"):
        return None
    return "domain" if path.endswith((":seq_pacs", ":rot_mnist")) else "class"


def way(label: str, stream: str, buffer: int | None = None) -> tuple[str, dict[str, Any]]:
    """The method and the settings behind a ``Settings.label``: er, fpf+er, fpf-all+er, k-fpf-ce, k-fpf-kd+masked, …"""
    repair, _, method = label.rpartition("+")
    if not repair and not label.startswith("k-fpf"):
        return label, {}
    if not repair:
        repair, method = label, "sgd"
    kind, *rest = repair.removeprefix("k-").split("-")
    given: dict[str, Any] = {"repair": "k-fpf" if repair.startswith("k-") else kind}
    if "all" in rest:
        given["groups"] = "all"
    if "kd" in rest:
        given["kd"] = distillation(stream, method, buffer)
    return method, given


def distillation(stream: str, method: str, buffer: int | None = None) -> float:
    """λ to start from: one that was searched for, or the middle of the paper's grid."""
    found = preset(stream, method, "k-fpf", buffer or 500, distils=True)
    if "kd" in found:
        return float(found["kd"][0])
    grid = sorted(GRIDS.get(stream, {}).get("k-fpf", {}).get("kd", (0.1,)))
    return grid[len(grid) // 2]


def steps(stream: str, epochs: int | None = None) -> int:
    """Training steps of a run on a stream; the last batch of an epoch may be smaller."""
    own = STREAM_DEFAULTS[stream]
    return int((epochs or own["epochs"]) * _batches(stream, own["batch"]))


def _batches(stream: str, batch: int) -> int:
    """Of an epoch of all tasks."""
    return sum(math.ceil(images / batch) for images in IMAGES[stream])


def training_steps(settings: Settings) -> int:
    """Of a run, finetuning included; FPF's last one too."""
    trained = settings.epochs * _batches(settings.stream, settings.batch)
    if settings.finetune is None:
        return trained
    every, steps = settings.finetune.every, settings.finetune.steps
    return trained + steps * (1 + (trained // every if every else 0))


def measure(lines: Sequence[Line], out: Path) -> list[Measured]:
    """The records there are of each line; lines without any are left out."""
    found = []
    for line in lines:
        records = tuple(made for one in line.runs if (made := record.find(out, one.settings)) is not None)
        if records:
            found.append(Measured(line, records))
    return found


def of_records(found: Sequence[Measured], records: Sequence[Record]) -> list[Measured]:
    """The lines with those of their records that are among ``records``."""
    ids = {made.id for made in records}
    return [Measured(one.line, tuple(made for made in one.records if made.id in ids)) for one in found]


def runs(lines: Sequence[Line]) -> list[Planned]:
    """All runs behind some lines, each once."""
    return list({one.settings.id: one for line in lines for one in line.runs}.values())


def to_dict(name: str, found: Sequence[Measured], findings: Sequence[Finding], notes: Sequence[str]) -> dict[str, Any]:
    """What came out, as plain data."""
    return {
        "what": name,
        "notes": list(notes),
        "lines": [
            {
                "name": one.line.name, "stream": one.line.stream, "metric": one.line.metric,
                "paper": None if one.line.target is None else [one.line.target.mean, one.line.target.std],
                "ours": [round(one.mean, 3), round(one.std, 3) if len(one.records) > 1 else None],
                "seeds": len(one.records),
                "difference": None if one.difference is None else round(one.difference, 3),
                "standard_errors": None if one.errors is None else round(one.errors, 2),
                "tflops": round(one.tflops, 6), "records": [made.id for made in one.records],
            }
            for one in found
        ],
        "findings": [{"claim": one.claim, "holds": one.holds, "numbers": one.numbers} for one in findings],
    }  # fmt: skip
