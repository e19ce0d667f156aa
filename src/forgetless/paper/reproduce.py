"""How an item of the paper, a table or a figure, becomes runs that are compared with the paper. Imports no torch.

An item returns lines. A line is a name, the runs behind it (one per seed) and the published number, if there is one.
The runs are those of a sweep, so finished runs are skipped. ``studies`` lists the items.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forgetless.config.catalogue import STREAMS
from forgetless.experiments.jobs import Planned
from forgetless.experiments.presets import preset, preset_table
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from forgetless.paper.published import Target
from forgetless.reports.rows import Row, plus_minus
from forgetless.training.metrics import MeanStd, mean_std

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures: TypeAlias = "dict[str, Figure]"  # by the name of the file
SEEDS = 5  # of the paper
QUICK, QUICK_SEEDS = "seq-digits", 2  # the stream and the seeds of a quick reproduction
DIGITS = (290, 286, 286, 304, 271)
IMAGES: Mapping[str, tuple[int, ...]] = {  # training images of each task of a stream
    "seq-digits": DIGITS, "forgetless.data.benchmarks:large_digits": DIGITS,
    "seq-mnist": (12_665, 12_089, 11_263, 12_183, 11_800), "rot-mnist": (60_000,) * 20,
    "seq-organamnist": (4703, 9254, 14_012, 6592), "seq-pathmnist": (29_235, 18_407, 20_068, 22_286),
    "seq-cifar10": (10_000,) * 5, "seq-tinyimagenet": (10_000,) * 10, "seq-pacs": (3143, 1875, 1638, 1337),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Which part of an item to reproduce, and how."""

    stream: str | None = None
    buffer: int | None = None
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    quick: bool = False
    device: str = "cpu"

    @property
    def buffer_setting(self) -> dict[str, Any]:
        return {} if self.buffer is None else {"buffer": self.buffer}

    def stream_or(self, default: str, quick: str = QUICK) -> str:
        """Return the stream that was asked for, or that of the paper, or that of a quick reproduction."""
        return self.stream or (quick if self.quick else default)


@dataclass(frozen=True)
class Line:
    """A row of a table or a point of a figure: its runs, one per seed, and the published number."""

    name: str
    runs: tuple[Planned, ...]
    target: Target | None = None
    metric: str = "accuracy"
    point: Any = None  # where it is in its figure

    @property
    def stream(self) -> str:
        return self.runs[0].settings.stream

    @property
    def label(self) -> str:
        """The name without buffer and frozen group."""
        return self.name.partition(", ")[0]


@dataclass(frozen=True)
class Measured:
    """A line and its records, compared with the paper."""

    line: Line
    records: tuple[Record, ...]

    @property
    def values(self) -> MeanStd:
        return mean_std(metric_value(record, self.line.metric) for record in self.records)

    @property
    def mean(self) -> float:
        return self.values.mean

    @property
    def shown(self) -> str:
        return plus_minus(self.values, len(self.records), 2)

    @property
    def standard_error(self) -> float:
        """The standard error of the mean, which is 0 for one seed."""
        return self.values.std / math.sqrt(len(self.records))

    @property
    def row(self) -> Row:
        return Row(self.line.label, self.records)

    @property
    def tflops(self) -> float:
        return self.row.tflops

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's."""
        return None if self.line.target is None else self.mean - self.line.target.mean

    @property
    def standard_errors(self) -> float | None:
        """The difference in units of its standard error, or None if one of the deviations is unknown."""
        target = self.line.target
        if target is None or target.std is None or len(self.records) < 2:
            return None
        error = math.hypot(target.std / math.sqrt(SEEDS), self.standard_error)
        return (self.mean - target.mean) / error if error else None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        line, std = self.line, self.values.std if len(self.records) > 1 else None
        return {
            "name": line.name, "stream": line.stream, "metric": line.metric,
            "paper": line.target and [line.target.mean, line.target.std],
            "ours": [round(self.mean, 3), std and round(std, 3)], "seeds": len(self.records),
            "difference": self.difference and round(self.difference, 3),
            "standard_errors": self.standard_errors and round(self.standard_errors, 2),
            "tflops": round(self.tflops, 6), "records": [record.id for record in self.records],
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, whether it holds here, and the numbers."""

    claim: str
    holds: bool
    numbers: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.claim} ({self.numbers})"


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper: how its runs are planned, judged and drawn."""

    where: str
    summary: str
    plan: Callable[[Options], Iterable[Line]]
    judge: Callable[[Sequence[Measured]], Iterable[Finding]]
    draw: Callable[[Sequence[Measured]], Figures]
    filters: bool = False  # whether ``filters`` measures its runs
    unused_options: tuple[str, ...] = ()

    def lines(self, options: Options) -> list[Line]:
        return list(self.plan(options))

    def check(self, name: str, options: Options) -> None:
        """Raise an error if an option is given that would have no effect."""
        for option in self.unused_options:
            if value := getattr(options, option):
                given = ",".join(value) if isinstance(value, tuple) else value
                raise ValueError(f"{option} is {given}, but {name} has no {option} to choose from: leave it out")


def listed(numbers: Mapping[str, float], form: str) -> str:
    """Return names and formatted numbers, separated by commas: "er 61.2, der 63.0"."""
    return ", ".join(f"{name} {number:{form}}" for name, number in numbers.items())


def metric_value(record: Record, metric: str) -> float:
    """Return what a record has for the metric of a published number."""
    if metric.startswith("accuracy_after_task_"):
        return record.anytime[int(metric.rpartition("_")[2]) - 1]
    if metric == "finetune_tflops":
        return record.flops.get("finetune", 0) / 1e12
    if metric == "train_tflops":
        return sum(record.flops.values()) / 1e12
    return record.accuracy


def plan_runs(stream: str, method: str, given: Mapping[str, Any], options: Options) -> tuple[Planned, ...]:
    """Return one run per seed, on the device of the options."""
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    values = {"device": options.device, **given}
    return tuple(Planned(*resolve(stream, method, {**values, "seed": seed})) for seed in range(seeds))


def default_network(stream: str) -> str:
    """Return the network of the runs on a stream."""
    return str(preset_table("stream_defaults").get(stream, {}).get("network", Settings.network))


def scenario(stream: str) -> str | None:
    """Return "class" or "domain" for a stream of forgetless, None for a user's, without loading it."""
    path = STREAMS[stream].path if stream in STREAMS else stream
    if not path.startswith("forgetless.data.benchmarks:"):
        return None
    return "domain" if path.endswith((":seq_pacs", ":rot_mnist")) else "class"


def parse_label(label: str, stream: str, buffer: int | None = None) -> tuple[str, dict[str, Any]]:
    """Return the method and the settings behind a ``Settings.label`` such as er, fpf-all+er or k-fpf-kd+masked.

    λ of k-FPF-KD is the value that a search chose, or the middle of the paper's grid.
    """
    if not label.startswith(("fpf", "k-fpf")):
        return label, {}
    repair, _, method = label.partition("+")
    method = method or "sgd"
    given: dict[str, Any] = {"repair": "k-fpf" if repair.startswith("k-") else "fpf"}
    if "-all" in repair:
        given["groups"] = "all"
    if repair.endswith("-kd"):
        searched = preset(stream, method, "k-fpf", buffer or 500, distils=True)
        grid = sorted(preset_table("grids").get(stream, {}).get("k-fpf", {}).get("kd", (0.1,)))
        given["kd"] = float(searched["kd"][0]) if "kd" in searched else grid[len(grid) // 2]
    return method, given


def stream_steps(stream: str, epochs: int | None = None, batch: int | None = None) -> int:
    """Return the training steps of a run on a stream; the last batch of a task may be smaller."""
    defaults = preset_table("stream_defaults").get(stream, {})
    batches = sum(math.ceil(images / (batch or defaults["batch"])) for images in IMAGES[stream])
    return int((epochs or defaults["epochs"]) * batches)


def training_steps(settings: Settings) -> int:
    """Return the steps of a run, including those of finetuning."""
    trained, finetune = stream_steps(settings.stream, settings.epochs, settings.batch), settings.finetune
    if finetune is None:
        return trained
    return trained + (finetune.steps or 0) * (1 + (trained // finetune.every if finetune.every else 0))


def measure(lines: Sequence[Line], records: Iterable[Record]) -> list[Measured]:
    """Return the lines that have records, each with its records."""
    by_id = {record.id: record for record in records}
    measured = [
        Measured(line, tuple(filter(None, (by_id.get(run.settings.id) for run in line.runs)))) for line in lines
    ]
    return [entry for entry in measured if entry.records]


def runs(lines: Sequence[Line]) -> list[Planned]:
    """Return the runs behind some lines, each once."""
    return list({run.settings.id: run for line in lines for run in line.runs}.values())


def to_dict(what: str, measured: Sequence[Measured], findings: Sequence[Finding], notes: list[str]) -> dict[str, Any]:
    """Return the outcome of a reproduction as plain data."""
    return {"what": what, "notes": notes, "lines": [entry.to_dict() for entry in measured],
            "findings": [asdict(finding) for finding in findings]}  # fmt: skip
