"""What the rows of a stream show, in sentences and headline numbers. Imports no torch.

Only rows with the same network, epochs, order of tasks and buffer are compared. Rows on validation are ignored if the
stream has other rows. A difference counts if it exceeds two standard errors. The noise of single runs is unknown, and
the sentences say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import hypot, sqrt
from statistics import mean
from typing import NamedTuple

from forgetless.config.units import quantity
from forgetless.reports.glossary import term
from forgetless.reports.rows import Row, family, grouped, plus_minus
from forgetless.training.metrics import mean_std

REPLAY = ("er", "der", "derpp", "mir", "fdr", "agem")  # methods that replay at every step
SETUP = ("network", "epochs", "order", "buffer")  # what compared rows have in common
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
    before: dict[str, Result]  # what FPF repaired: the same runs before it, or else a row of the method alone
    k_fpf: Result | None
    repaired: Result | None  # the best of both
    alone: dict[str, Result]  # a row of the method alone, or else the runs that FPF repaired, before it
    replays: list[Result]  # the two most accurate methods that replay, the cheaper one first
    base: Result | None  # what FLOPs are compared with: plain SGD, or else the cheaper replay


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Return a comparison per setup; sgd and joint have no buffer and belong to the setups of every buffer."""
    tested = [row for row in rows if not row.settings["validation"]] or rows
    ranked = sorted(tested, key=lambda row: row.accuracy)
    setups: dict[tuple[str, ...], list[Row]] = {}
    for shared, members in grouped(ranked, lambda row: tuple(str(row.settings.get(key)) for key in SETUP[:-1])).items():
        buffered = {
            r.label: str(r.settings["buffer"]) for r in members if r.label.split(",")[0] not in ("sgd", "joint")
        }
        for buffer in dict.fromkeys(buffered.values()) or ("none",):
            key = (*shared, buffer)
            setups[key] = [row for row in members if buffered.get(row.label, buffer) == buffer]
    differing = [i for i, values in enumerate(zip(*setups, strict=True)) if len(set(values)) > 1]
    return [_compare(", ".join(f"{SETUP[i]} {key[i]}" for i in differing), same) for key, same in setups.items()]


def _compare(setup: str, rows: list[Row]) -> Comparison:
    fpf, k_fpf, own = (
        {row.settings["method"]: _result(row) for row in rows if family(row.label) == name}
        for name in ("fpf", "k-fpf", "alone")
    )
    own = {method: result._replace(name=_name(method)) for method, result in own.items()}
    unrepaired = {method: before for method, after in fpf.items() if (before := _before(after.row))}
    alone = unrepaired | own
    replays = sorted((alone[method] for method in REPLAY if method in alone), key=lambda replay: replay.accuracy)[-2:]
    replays.sort(key=lambda replay: replay.flops)
    base = alone.get("sgd") or next(iter(replays), None)
    best = _best([*fpf.values(), *k_fpf.values()])
    return Comparison(setup, rows, fpf, own | unrepaired, _best(k_fpf.values()), best, alone, replays, base)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph per setup on what repair brings and what it costs; of many setups, the largest with repair."""
    compared = comparisons(rows)
    largest = sorted(compared, key=lambda comparison: (comparison.repaired is None, -len(comparison.rows)))
    return [_paragraph(comparison) for comparison in compared if comparison in largest[:PARAGRAPHS]]


def _paragraph(comparison: Comparison) -> str:
    setup, rows, fpf, before, k_fpf, best, alone, replays, base = comparison
    sgd, joint, sentences = alone.get("sgd"), alone.get("joint"), []
    if sgd:
        sentences.append(f"Plain SGD ends at {sgd.accuracy:.1f} %.")
    if after := fpf.get("sgd"):
        repairing, outcome = (
            f"Repairing {_share(after)} of its parameters",
            _outcome(before.get("sgd"), after, "brings it to"),
        )
        sentences.append(f"{repairing} afterwards (FPF) {outcome}{_cost(after, base)}.")
    if k_fpf:
        repairing, outcome = f"Repairing {_share(k_fpf)} of the parameters", _outcome(sgd, k_fpf, "reaches")
        sentences.append(f"{repairing} at intervals ({k_fpf.name}) {outcome}{_cost(k_fpf, base)}.")
    if replays:
        ends = [f"{replay.accuracy:.1f} % ({replay.name}{_cost(replay, base)})" for replay in replays]
        sentences.append(f"Replay at every step ends at {' and '.join(ends)}.")
    if after := _best(result for method, result in fpf.items() if method != "sgd"):
        method = after.row.settings["method"]
        old = before.get(method)
        outcome = _outcome(old, after, f"brings it from {old.accuracy:.1f} % to" if old else "")
        repairing = f"Repairing {_share(after)} of the parameters after {_name(method)} (FPF)"
        sentences.append(f"{repairing} {outcome}{_cost(after, old or base)}.")
    changes = [_change(before[method], after) for method, after in fpf.items() if method in before]
    if len(changes) > 2 and all(len(after.accuracies) > 1 for after in fpf.values()):
        sentences.append(f"FPF helps {sum(c > 0 for c in changes)} of {len(changes)} methods beyond noise.")
    if best is None:
        top = f"{rows[-1].label} with {rows[-1].accuracy:.1f} %"
        sentences.append(f"No row is repaired; the best of {len(rows)} is {top}.")
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
    """Return headlines (title, value, note) of the setup in which repair is most accurate; none without a repaired row.

    The first is about the best repaired row. The others are about FPF after plain SGD, else the best FPF, else k-FPF.
    """
    repaired = [(comparison.repaired, comparison) for comparison in comparisons(rows) if comparison.repaired]
    if not repaired:
        return []
    best, comparison = max(repaired, key=lambda pair: pair[0].accuracy)
    fpf, where = comparison.fpf, f", {comparison.setup}" if comparison.setup else ""
    after = fpf.get("sgd") or _best(fpf.values()) or best
    before = comparison.before.get(after.row.settings["method"])
    accuracy = plus_minus(best.row.accuracies, len(best.row.records), 1)
    shown = [("Best accuracy with repair", f"{accuracy} %", f"{best.name}{where}")]
    if before:
        gain = f"{after.accuracy - before.accuracy:+.1f} points".replace("-", "\N{MINUS SIGN}")
        noise = "" if _change(before, after) else "; within noise"
        shown.append(("Gain by repair", gain, f"{after.name} compared with {before.name} alone{where}{noise}"))
    shown.append(("Parameters repaired", _share(after), f"{after.name}{where}"))
    if (base := next(iter(comparison.replays), comparison.base)) and base.flops:
        title = f"Compute compared with {'replay' if comparison.replays else base.name}"
        shown.append((title, f"{after.flops / base.flops:.2f} ×", f"{after.name} compared with {base.name}{where}"))
    return shown


def _best(results: Iterable[Result]) -> Result | None:
    return max(results, key=lambda result: result.accuracy, default=None)


def _result(row: Row) -> Result:
    return Result(row.label.split(",")[0], row, [record.accuracy for record in row.records], round(row.tflops * 1e12))


def _before(row: Row) -> Result | None:
    """Return what the runs of a row were before FPF, if that was recorded."""
    accuracies = [mean(record.before_finetuning) for record in row.records if record.before_finetuning]
    flops = mean(sum(record.flops.values()) - record.flops.get("finetune", 0) for record in row.records)
    return (
        Result(_name(row.settings["method"]), row, accuracies, flops) if len(accuracies) == len(row.records) else None
    )


def _name(method: str) -> str:
    return "plain SGD" if method == "sgd" else term(method)


def _share(result: Result) -> str:
    share = 100 * result.row.share
    return f"{share:.{2 if share < 1 else 1 if share < 10 else 0}f} %"


def _cost(result: Result, base: Result | None) -> str:
    """Return a phrase on the FLOPs of a result: relative to another result if there is one, which may be itself."""
    if base is None or not base.flops or result == base:
        return "" if base else f", at {quantity(result.flops, 'FLOPs')}"
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
