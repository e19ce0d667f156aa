"""What the rows of a stream show, in sentences and headline numbers. Imports no torch.

Only rows with the same network, epochs, order of tasks, test images and buffer are compared. A difference counts if it
exceeds two standard errors. The noise of single runs is unknown, and the sentences say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt
from statistics import mean
from typing import Any, NamedTuple

from forgetless.reports.glossary import term
from forgetless.reports.rows import Row, family, grouped, plus_minus, si_prefix
from forgetless.training.metrics import mean_std

REPLAY = ("er", "der", "derpp", "mir", "fdr", "agem")  # methods that replay at every step
SHARED = ("network", "epochs", "order", "validation")  # what compared rows have in common, besides the buffer
PARAGRAPHS = 4  # a large sweep has more setups than anyone reads about


class Result(NamedTuple):
    """The accuracies of a row, one per seed, and its mean FLOPs: at the end, or before the repair at the end."""

    name: str
    row: Row
    accuracies: list[float]
    flops: float

    @property
    def accuracy(self) -> float:
        return mean(self.accuracies)


class Comparison(NamedTuple):
    """The rows of one setup, the least accurate first, and the best of them by method."""

    setup: str
    rows: list[Row]
    fpf: dict[str, Result]
    k_fpf: dict[str, Result]
    alone: dict[str, Result]  # from a row of its own, or from a repaired row as it was before its repair

    @property
    def replays(self) -> list[Result]:
        """The two most accurate methods that replay at every step, the cheaper one first."""
        known = [result for method, result in self.alone.items() if method in REPLAY]
        return sorted(sorted(known, key=lambda result: -result.accuracy)[:2], key=lambda result: result.flops)

    @property
    def repaired(self) -> Result | None:
        """The repaired row with the highest accuracy."""
        return max([*self.fpf.values(), *self.k_fpf.values()], key=lambda result: result.accuracy, default=None)

    @property
    def base(self) -> Result | None:
        """What FLOPs are compared with: plain SGD, or else the cheaper replay."""
        return self.alone.get("sgd") or next(iter(self.replays), None)


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Return a comparison per setup; sgd and joint have no buffer and belong to the setups of every buffer."""
    setups: list[tuple[dict[str, Any], list[Row]]] = []
    ranked = sorted(rows, key=lambda row: row.accuracy)
    for members in grouped(ranked, lambda row: str([row.settings.get(name) for name in SHARED])).values():
        halves = grouped(members, lambda row: row.label.split(",")[0] in ("sgd", "joint"))
        without, by_buffer = halves.get(True, []), grouped(halves.get(False, []), lambda r: str(r.settings["buffer"]))
        for buffer, others in (by_buffer or {"none": []}).items():
            setup = {name: members[0].settings.get(name) for name in SHARED} | {"buffer": buffer}
            setups.append((setup, sorted([*without, *others], key=lambda row: row.accuracy)))
    differing = [name for name in (*SHARED, "buffer") if len({str(setup[name]) for setup, _ in setups}) > 1]
    return [_compare(", ".join(f"{name} {setup[name]}" for name in differing), members) for setup, members in setups]


def _compare(setup: str, rows: list[Row]) -> Comparison:
    fpf, k_fpf, own = (
        {row.settings["method"]: _result(row) for row in rows if family(row.label) == name}
        for name in ("fpf", "k-fpf", "alone")
    )
    before = {method: result for method, repaired in fpf.items() if (result := _before(repaired.row))}
    named = {method: result._replace(name=_name(method)) for method, result in own.items()}
    return Comparison(setup, rows, fpf, k_fpf, before | named)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph per setup on what repair brings and what it costs; of many setups, the largest with repair."""
    compared = comparisons(rows)
    largest = sorted(compared, key=lambda comparison: (comparison.repaired is None, -len(comparison.rows)))
    return [_paragraph(comparison) for comparison in compared if comparison in largest[:PARAGRAPHS]]


def _paragraph(comparison: Comparison) -> str:
    setup, rows, fpf, k_fpf, alone = comparison
    sgd, joint, best, base = alone.get("sgd"), alone.get("joint"), comparison.repaired, comparison.base
    sentences = [f"Plain SGD ends at {sgd.accuracy:.1f} %."] if sgd else []
    if after := fpf.get("sgd"):
        outcome = _outcome(_before(after.row) or sgd, after, "brings it to")
        sentences.append(f"Repairing {_share(after)} of its parameters afterwards (FPF) {outcome}{_cost(after, base)}.")
    if k_fpf:
        after = max(k_fpf.values(), key=lambda result: result.accuracy)
        repairing = f"Repairing {_share(after)} of the parameters at intervals ({after.name})"
        sentences.append(f"{repairing} {_outcome(sgd, after, 'reaches')}{_cost(after, base)}.")
    if replays := [f"{r.accuracy:.1f} % ({r.name}{_cost(r, base)})" for r in comparison.replays]:
        sentences.append(f"Replay at every step ends at {' and '.join(replays)}.")
    if others := {method: after for method, after in fpf.items() if method != "sgd"}:
        method, after = max(others.items(), key=lambda item: item[1].accuracy)
        before = _before(after.row) or alone.get(method)
        outcome = _outcome(before, after, f"brings it from {before.accuracy:.1f} % to" if before else "")
        repairing = f"Repairing {_share(after)} of the parameters after {_name(method)} (FPF)"
        sentences.append(f"{repairing} {outcome}{_cost(after, before or base)}.")
    known = [(before, after) for method, after in fpf.items() if (before := _before(after.row) or alone.get(method))]
    if len(known) > 2 and all(len(after.accuracies) > 1 for _, after in known):
        helped = sum(_change(before, after) > 0 for before, after in known)
        sentences.append(f"FPF helps {helped} of {len(known)} methods beyond noise.")
    if best is None:
        sentences.append(
            f"No row is repaired; the best of {len(rows)} is {rows[-1].label} with {rows[-1].accuracy:.1f} %."
        )
    if joint:
        change = _change(best, joint) if best else 0.0
        against = f"{abs(change):.1f} points {'above' if change > 0 else 'below'}" if change else "within noise of"
        against = f", {against} {best.name}" if best else ""
        sentences.append(f"Training on all tasks at once (joint) ends at {joint.accuracy:.1f} %{against}.")
    if len({row.label.split(",")[0] for row in rows}) < len(rows):
        sentences.append("Of several settings of a method, the best row counts.")
    if any(len(row.records) == 1 for row in rows):
        sentences.append("Rows without ± are single runs, whose noise is unknown.")
    return (f"{setup[0].upper()}{setup[1:]}: " if setup else "") + " ".join(sentences)


def cards(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return headline numbers of the setup in which repair reaches the highest accuracy; none if no row is repaired.

    The first is about the best repaired row. The others are about FPF after plain SGD, else the best FPF, else k-FPF.
    """
    candidates = [(best, comparison) for comparison in comparisons(rows) if (best := comparison.repaired)]
    if not candidates:
        return []
    best, comparison = max(candidates, key=lambda candidate: candidate[0].accuracy)
    fpf, where = comparison.fpf, f", {comparison.setup}" if comparison.setup else ""
    after = fpf.get("sgd") or max(fpf.values(), key=lambda result: result.accuracy, default=best)
    before = _before(after.row) or comparison.alone.get(after.row.settings["method"])
    accuracy = plus_minus(best.row.accuracies, len(best.row.records), 1)
    shown = [("Best accuracy with repair", f"{accuracy} %", f"{best.name}{where}")]
    if before:
        noise = "" if _change(before, after) else "; within noise"
        gain = f"{after.accuracy - before.accuracy:+.1f} points".replace("-", "\N{MINUS SIGN}")
        shown.append(("Gain by repair", gain, f"{after.name} compared with {before.name} alone{where}{noise}"))
    shown.append(("Parameters repaired", _share(after), f"{after.name}{where}"))
    if (base := next(iter(comparison.replays), comparison.base)) and base.flops:
        title = f"Compute compared with {'replay' if comparison.replays else base.name}"
        note = f"{after.name} compared with {base.name}{where}"
        shown.append((title, f"{after.flops / base.flops:.2f} ×", note))
    return shown


def _result(row: Row) -> Result:
    return Result(row.label.split(",")[0], row, [record.accuracy for record in row.records], round(row.tflops * 1e12))


def _before(row: Row) -> Result | None:
    """Return what a row was before the repair at its end, if FPF was its only repair and that was recorded."""
    accuracies = [mean(record.before_finetuning) for record in row.records if record.before_finetuning]
    if family(row.label) != "fpf" or len(accuracies) < len(row.records):
        return None
    flops = mean(sum(record.flops.values()) - record.flops.get("finetune", 0) for record in row.records)
    return Result(_name(row.settings["method"]), row, accuracies, flops)


def _name(method: str) -> str:
    return "plain SGD" if method == "sgd" else term(method)


def _share(result: Result) -> str:
    share = 100 * result.row.share
    return f"{share:.{2 if share < 1 else 1 if share < 10 else 0}f} %"


def _cost(result: Result, base: Result | None) -> str:
    """Return a phrase on the FLOPs of a result: relative to another result if there is one, which may be itself."""
    if base is None or not base.flops or result == base:
        return "" if base else f", at {si_prefix(result.flops)}FLOPs"
    ratio = result.flops / base.flops
    of = "" if base.name == "plain SGD" else f" of {base.name}"
    return f", at {ratio:.{2 if ratio < 1.1 else 1}f} times the compute{of}"


def _change(before: Result, after: Result) -> float:
    """Return the change in points, or 0 if it is at most two standard errors; of single runs, the plain difference.

    Accuracies before and after a repair of the same runs are compared run by run.
    """
    change = after.accuracy - before.accuracy
    samples = [before.accuracies, after.accuracies]
    if before.row is after.row:
        samples = [[new - old for old, new in zip(*samples, strict=True)]]
    return change if abs(change) > 2 * hypot(*(mean_std(sample).std / sqrt(len(sample)) for sample in samples)) else 0.0


def _outcome(before: Result | None, after: Result, better: str) -> str:
    """Return where a repair ends, in words that depend on whether it helps."""
    change = _change(before, after) if before else 0.0
    if change > 0:
        return f"{better} {after.accuracy:.1f} %"
    against = f", {'below' if change else 'within noise of'} {before.name} ({before.accuracy:.1f} %)" if before else ""
    return f"ends at {after.accuracy:.1f} %{against}"
