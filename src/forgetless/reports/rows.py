"""Records → rows and tables: one row for each way of training, over its seeds. Imports no torch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from forgetless.experiments.record import Record, mismatch, way_of, without_seed


@dataclass(frozen=True)
class Row:
    """The records of one way of training, over their seeds."""

    label: str
    records: tuple[Record, ...]

    @property
    def accuracy(self) -> float:
        return mean(record.accuracy for record in self.records)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; 0 for one."""
        values = [record.accuracy for record in self.records]
        return stdev(values) if len(values) > 1 else 0.0

    @property
    def forgetting(self) -> float | None:
        values = [record.forgetting for record in self.records if record.forgetting is not None]
        return mean(values) if values else None

    @property
    def tflops(self) -> float:
        return mean(sum(record.flops.values()) for record in self.records) / 1e12

    @property
    def seconds(self) -> float:
        return mean(record.seconds["total"] for record in self.records)

    @property
    def share(self) -> float:
        return mean(record.share for record in self.records)

    @property
    def anytime(self) -> list[float]:
        return [mean(values) for values in zip(*(record.anytime for record in self.records), strict=True)]

    @property
    def matrix(self) -> list[list[float]]:
        """Accuracy [after task][on task], mean over seeds."""
        return _mean([record.accuracy_matrix for record in self.records])

    @property
    def moved_by_finetuning(self) -> bool:
        """Whether the weights that two tasks are compared by were finetuned between them."""
        return bool(self.records[0].settings["repair"] == "k-fpf")

    @property
    def sensitivity(self) -> dict[str, float]:
        first = self.records[0].sensitivity
        found = {}
        for group in first:
            values = [score for record in self.records if (score := record.sensitivity[group]) is not None]
            if values:
                found[group] = mean(values)
        return found


def rows(records: Sequence[Record]) -> list[Row]:
    """One row for each way of training (all settings but the seed), in the order in which they first appear.

    Where several ways have one label, the settings in which they differ are named: er, buffer 200. Those that were
    tested on held-out training images say so.
    """
    ways: dict[str, list[Record]] = {}
    for record in records:
        ways.setdefault(way_of(record), []).append(record)
    namesakes: dict[str, list[dict[str, Any]]] = {}
    for members in ways.values():
        namesakes.setdefault(members[0].label, []).append(without_seed(members[0]))
    differing = {label: _differing(settings) - {"validation"} for label, settings in namesakes.items()}
    found = []
    for members in ways.values():
        for other in members[1:]:
            if problem := mismatch(members[0], other):
                raise ValueError(problem)
        label, own = members[0].label, without_seed(members[0])
        held_out = ["on validation"] if own["validation"] else []
        named = [name if own[name] is True else f"{name} {own[name]}" for name in own if name in differing[label]]
        found.append(Row(", ".join([label, *named, *held_out]), tuple(members)))
    return found


def profiled(found: Sequence[Row]) -> Row | None:
    """The row whose S_g is shown: plain SGD's, or another that was not finetuned on the way.

    S_g of k-FPF has in it what its finetunings moved, so it comes only where there is nothing else.
    """
    told = [row for row in found if row.sensitivity]
    plain = [row for row in told if not row.moved_by_finetuning]
    return next((row for row in plain if row.label.split(",")[0] == "sgd"), next(iter(plain or told), None))


def _differing(settings: Sequence[dict[str, Any]]) -> set[str]:
    """The names of those that are not the same everywhere."""
    names = {name for own in settings for name in own}
    return {name for name in names if len({repr(own.get(name)) for own in settings}) > 1}


def by_stream(records: Sequence[Record]) -> dict[str, list[Record]]:
    """In the order in which the streams first appear."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.settings["stream"], []).append(record)
    return found


def best_first(records: Sequence[Record]) -> list[Record]:
    """So that of each stream the most accurate way of training comes first, and its seeds in order."""
    found: list[Record] = []
    for members in by_stream(records).values():
        for row in sorted(rows(members), key=lambda row: -row.accuracy):
            found += sorted(row.records, key=lambda record: record.settings["seed"])
    return found


def table(records: Sequence[Record]) -> str:
    """The rows as CSV, numbers unrounded, with the ids of their records."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["stream", "method", "accuracy", "std", "seeds", "forgetting", "flops", "seconds", "share", "records"]
    )
    for row in [row for members in by_stream(records).values() for row in rows(members)]:
        forgot = "" if row.forgetting is None else row.forgetting
        ids = " ".join(record.id for record in row.records)
        spread = row.spread if len(row.records) > 1 else ""
        writer.writerow([
            row.records[0].settings["stream"], row.label, row.accuracy, spread, len(row.records), forgot,
            round(row.tflops * 1e12), row.seconds, row.share, ids,
        ])  # fmt: skip
    return text.getvalue()


def latex(records: Sequence[Record]) -> str:
    """The rows as a LaTeX table (booktabs), a block for each stream, the best accuracy of each in bold."""
    lines = [r"\begin{tabular}{lrrrr}", r"\toprule", r"method & accuracy & forgetting & TFLOPs & finetuned \\"]
    for stream, members in by_stream(records).items():
        found = rows(members)
        top = best(found)
        lines += [r"\midrule", rf"\multicolumn{{5}}{{l}}{{{_tex(stream)}}} \\"]
        for row in found:
            number = f"{row.accuracy:.2f}"
            number = rf"\mathbf{{{number}}}" if row in top else number
            spread = rf" \pm {row.spread:.2f}" if len(row.records) > 1 else ""
            forgot = "--" if row.forgetting is None else f"{row.forgetting:.2f}"
            share = f"{row.share:.2%}".replace("%", r"\%") if row.share else "--"
            lines.append(rf"{_tex(row.label)} & ${number}{spread}$ & {forgot} & {row.tflops:.3g} & {share} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "#$%&_{}" else sign for sign in text)


def _mean(matrices: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    return [[mean(values) for values in zip(*members, strict=True)] for members in zip(*matrices, strict=True)]


def competing(found: Sequence[Row]) -> list[Row]:
    """Those that learn task after task, which ``joint``, the upper bound, does not, and by their tests, if any are."""
    own = [row for row in found if row.records[0].settings["method"] != "joint"]
    return [row for row in own if not row.records[0].settings["validation"]] or own


def best(found: Sequence[Row]) -> list[Row]:
    """Of those that compete, the ones with the highest accuracy."""
    own = competing(found) or list(found)
    top = max(row.accuracy for row in own)
    return [row for row in own if row.accuracy == top]


def front(found: Sequence[Row]) -> list[Row]:
    """Of those that compete, the ones to which no other is both more accurate and cheaper; the cheapest first."""
    kept: list[Row] = []
    for row in sorted(competing(found), key=lambda row: (row.tflops, -row.accuracy)):
        if not kept or row.accuracy > kept[-1].accuracy:
            kept.append(row)
    return kept


def cells(row: Row) -> list[str]:
    """What the table says of a row: label, accuracy, forgetting, FLOPs, seconds, share finetuned."""
    forgot = "–" if row.forgetting is None else f"{row.forgetting:.1f}"
    spread = f" ± {row.spread:.1f}" if len(row.records) > 1 else ""
    share = f"{row.share:.2%}" if row.share else "–"
    return [row.label, f"{row.accuracy:.1f}{spread}", forgot, si(row.tflops * 1e12), f"{row.seconds:.1f}", share]


HEADINGS = ("method", "accuracy %", "forgetting", "FLOPs", "seconds", "finetuned")


def si(value: float) -> str:
    """A number with a unit prefix: 1.3 G."""
    if not value:
        return "0"
    rounded = float(f"{value:.3g}")
    power = max(0, min(math.floor(math.log10(rounded)) // 3, 6))
    return f"{rounded / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}".strip()
