"""Rows of a table: the records of one configuration, averaged over seeds. Imports no torch."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, mean
from typing import Any, TypeVar

from forgetless.config.units import duration, si_prefix
from forgetless.experiments.labels import describe, varying
from forgetless.experiments.record import Record, key_without_seed, without_seed
from forgetless.training.metrics import MeanStd, mean_std

Key = TypeVar("Key")
Item = TypeVar("Item")
HEADINGS = ("method", "accuracy %", "forgetting", "FLOPs", "time", "finetuned")


@dataclass(frozen=True)
class Row:
    """One line of a table: a label and the records of one configuration, one per seed. Properties are means."""

    label: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """The label without settings."""
        return self.label.split(",")[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the first record; only the seed is another in the others."""
        return self.records[0].settings

    @cached_property
    def accuracies(self) -> MeanStd:
        """The mean accuracy and its standard deviation, which is 0 for one seed."""
        return mean_std(record.accuracy for record in self.records)

    @property
    def accuracy(self) -> float:
        return self.accuracies.mean

    @property
    def std(self) -> float:
        return self.accuracies.std

    @property
    def forgetting(self) -> float | None:
        values = [record.forgetting for record in self.records if record.forgetting is not None]
        return mean(values) if values else None

    @cached_property
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
        return [fmean(values) for values in zip(*(record.anytime for record in self.records), strict=True)]

    @property
    def matrix(self) -> list[list[float]]:
        """The accuracy [after task][on task]."""
        matrices = [record.accuracy_matrix for record in self.records]
        return [[fmean(values) for values in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)]

    @property
    def sensitivity(self) -> dict[str, float]:
        """S_g of each group that has a score in at least one record."""
        scores = {group: [r.sensitivity[group] for r in self.records] for group in self.records[0].sensitivity}
        known = {group: [score for score in values if score is not None] for group, values in scores.items()}
        return {group: mean(values) for group, values in known.items() if values}


def table_rows(records: Sequence[Record]) -> list[Row]:
    """Return one row per configuration (all settings except the seed), in order of first appearance.

    Where configurations share a label, the settings in which they differ are appended ("er, buffer 200").
    Labels of runs that were tested on held-out training images end in "on validation".
    """
    configurations = list(grouped(records, key_without_seed).values())
    same_label = grouped((members[0] for members in configurations), lambda record: record.label)
    differing = {label: varying(map(without_seed, firsts)) - {"validation"} for label, firsts in same_label.items()}
    rows = []
    for members in configurations:
        label, settings = members[0].label, without_seed(members[0])
        held_out = ", on validation" if settings["validation"] else ""
        rows.append(Row(describe(label, settings, differing[label]) + held_out, tuple(members)))
    return rows


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def family(label: str) -> str:
    """Return how the row of a label is repaired: ``alone``, ``fpf`` or ``k-fpf``. Each has one colour everywhere."""
    match = re.match(r"(k-)?fpf(?![\w.:])", label.lower())
    return match[0] if match else "alone"


def by_stream(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each stream, in order of first appearance."""
    return grouped(records, lambda record: str(record.settings["stream"]))


def best_first(records: Sequence[Record]) -> list[Record]:
    """Return the records of each stream sorted by the mean accuracy of their row, then by seed."""
    tables = [sorted(table_rows(members), key=lambda row: -row.accuracy) for members in by_stream(records).values()]
    return [r for rows in tables for row in rows for r in sorted(row.records, key=lambda r: r.settings["seed"])]


def profile_row(rows: Sequence[Row]) -> Row | None:
    """Return the row whose S_g is shown: plain SGD, else another row that was not finetuned during training.

    S_g of k-FPF includes what its finetunings moved, so such a row is only the last resort.
    """
    scored = [row for row in rows if row.sensitivity]
    undisturbed = [row for row in scored if row.settings["repair"] != "k-fpf"]
    sgd = [row for row in undisturbed if row.name == "sgd"]
    return next(iter(sgd or undisturbed or scored), None)


def competing(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that learn task by task (not ``joint``), without those on validation if others exist."""
    sequential = [row for row in rows if row.settings["method"] != "joint"]
    return [row for row in sequential if not row.settings["validation"]] or sequential


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the competing rows with the highest accuracy."""
    candidates = competing(rows) or list(rows)
    top = max(row.accuracy for row in candidates)
    return [row for row in candidates if row.accuracy == top]


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Return the competing rows that no other row beats in both accuracy and FLOPs, the cheapest first."""
    front: list[Row] = []
    for row in sorted(competing(rows), key=lambda row: (row.tflops, -row.accuracy)):
        if not front or row.accuracy > front[-1].accuracy:
            front.append(row)
    return front


def csv_table(records: Sequence[Record]) -> str:
    """Return the rows as CSV: unrounded numbers and the ids of the records."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ("stream", "method", "accuracy", "std", "seeds", "forgetting", "flops", "seconds", "share", "records")
    writer.writerow(columns)
    for stream, members in by_stream(records).items():
        for row in table_rows(members):
            seeds, std = len(row.records), row.std if len(row.records) > 1 else None
            flops, ids = round(row.tflops * 1e12), " ".join(record.id for record in row.records)
            values = (stream, row.label, row.accuracy, std, seeds, row.forgetting, flops, row.seconds, row.share, ids)
            writer.writerow(values)
    return text.getvalue()


def latex_table(records: Sequence[Record]) -> str:
    """Return the rows as a LaTeX table (booktabs): one block per stream, its best accuracy in bold."""
    lines = [r"\begin{tabular}{lrrrr}", r"\toprule", r"method & accuracy & forgetting & TFLOPs & finetuned \\"]
    for stream, members in by_stream(records).items():
        rows = table_rows(members)
        top = best_rows(rows)
        lines += [r"\midrule", rf"\multicolumn{{5}}{{l}}{{{_escape_tex(stream)}}} \\"]
        for row in rows:
            number = rf"\mathbf{{{row.accuracy:.2f}}}" if row in top else f"{row.accuracy:.2f}"
            std = rf" \pm {row.std:.2f}" if len(row.records) > 1 else ""
            forgetting = "--" if row.forgetting is None else f"{row.forgetting:.2f}"
            share = f"{row.share:.2%}".replace("%", r"\%") if row.share else "--"
            lines.append(rf"{_escape_tex(row.label)} & ${number}{std}$ & {forgetting} & {row.tflops:.3g} & {share} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _escape_tex(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return "".join(f"\\{sign}" if sign in "#$%&_{}" else sign for sign in text)


def cells(row: Row) -> list[str]:
    """Return the texts of a row under ``HEADINGS``."""
    forgetting = "–" if row.forgetting is None else f"{row.forgetting:.1f}"
    accuracy = plus_minus(row.accuracies, len(row.records), 1)
    share = f"{row.share:.2%}" if row.share else "–"
    return [row.label, accuracy, forgetting, si_prefix(row.tflops * 1e12), duration(row.seconds), share]


def plus_minus(value: MeanStd, seeds: int, digits: int) -> str:
    """Return "mean ± std", or the mean alone for a single seed."""
    return f"{value.mean:.{digits}f}" + (f" ± {value.std:.{digits}f}" if seeds > 1 else "")
