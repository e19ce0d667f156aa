"""What the rows of a stream show, in sentences and headline numbers. Imports no torch.

Only rows with the same network, epochs, order of tasks and buffer are compared, and of several rows of a method the
best counts. Rows on validation are ignored if the stream has other rows. A difference counts if it exceeds two standard
errors. The noise of single runs is unknown, and the sentences say so.
"""

from collections.abc import Iterable, Sequence
from math import hypot, sqrt
from statistics import mean
from typing import NamedTuple

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


class Setup(NamedTuple):
    """The rows of one setup, the least accurate first, and the best of them by method."""

    name: str
    rows: list[Row]
    alone: dict[str, Result]  # a row of the method alone, or else the runs that FPF repaired, before it
    fpf: dict[str, Result]
    k_fpf: Result | None
    repaired: Result | None  # the best of FPF and k-FPF
    replays: list[Result]  # the two most accurate methods that replay, the cheaper one first
    base: Result | None  # what FLOPs are compared with: plain SGD, or else the cheaper replay

    def before(self, after: Result) -> Result | None:
        """Return what FPF repaired: the same runs before it, or else a row of the method alone."""
        return _before(after.row) or self.alone.get(after.row.settings["method"])


def setups(rows: Sequence[Row]) -> list[Setup]:
    """Return the rows by setup; sgd and joint have no buffer and belong to the setups of every buffer."""
    tested = [row for row in rows if not row.settings["validation"]] or rows
    ranked = sorted(tested, key=lambda row: row.accuracy)
    members: dict[tuple[str, ...], list[Row]] = {}
    for shared, same in grouped(ranked, lambda row: tuple(str(row.settings.get(key)) for key in SETUP[:-1])).items():
        buffers = {row.label: str(row.settings["buffer"]) for row in same if row.name not in ("sgd", "joint")}
        for buffer in dict.fromkeys(buffers.values()) or ("none",):
            members[(*shared, buffer)] = [row for row in same if buffers.get(row.label, buffer) == buffer]
    differing = [i for i, values in enumerate(zip(*members, strict=True)) if len(set(values)) > 1]
    return [_setup(", ".join(f"{SETUP[i]} {key[i]}" for i in differing), same) for key, same in members.items()]


def _setup(name: str, rows: list[Row]) -> Setup:
    fpf, k_fpf, own = (
        {row.settings["method"]: _result(row) for row in rows if family(row.label) == repair}
        for repair in ("fpf", "k-fpf", "alone")
    )
    unrepaired = {method: before for method, after in fpf.items() if (before := _before(after.row))}
    alone = unrepaired | {method: result._replace(name=_name(method)) for method, result in own.items()}
    replays = sorted((alone[method] for method in REPLAY if method in alone), key=lambda replay: replay.accuracy)[-2:]
    replays.sort(key=lambda replay: replay.flops)
    base = alone.get("sgd") or next(iter(replays), None)
    best = _best([*fpf.values(), *k_fpf.values()])
    return Setup(name, rows, alone, fpf, _best(k_fpf.values()), best, replays, base)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph per setup on what repair brings and what it costs; of many setups, the largest with repair."""
    found = setups(rows)
    largest = sorted(found, key=lambda setup: (setup.repaired is None, -len(setup.rows)))
    return [_paragraph(setup) for setup in found if setup in largest[:PARAGRAPHS]]


def _paragraph(setup: Setup) -> str:
    alone, sentences = setup.alone, []
    if sgd := alone.get("sgd"):
        sentences.append(f"Plain SGD ends at {sgd.accuracy:.1f} %.")
    others = _best(result for method, result in setup.fpf.items() if method != "sgd")
    for after in filter(None, (setup.fpf.get("sgd"), others, setup.k_fpf)):
        when, before = "at intervals" if after is setup.k_fpf else "afterwards", setup.before(after)
        repairing = f"Repairing {_share(after)} of the parameters {when} ({after.name})"
        sentences.append(_sentence(repairing, after, before, before or setup.base))
    for replay in setup.replays:
        sentences.append(_sentence(f"Replay at every step ({replay.name})", replay, base=setup.base))
    if gdumb := alone.get("gdumb"):
        sentences.append(_sentence("Training on the buffer alone (GDumb)", gdumb))
    if setup.repaired is None:
        top = setup.rows[-1]
        sentences.append(f"No row is repaired; the best of {len(setup.rows)} is {top.label} with {top.accuracy:.1f} %.")
    if joint := alone.get("joint"):
        sentences.append(_sentence("Training on all tasks at once (joint)", joint, setup.repaired))
    if any(len(row.records) == 1 for row in setup.rows):
        sentences.append("Rows without ± are single runs, whose noise is unknown.")
    return (f"{setup.name[0].upper()}{setup.name[1:]}: " if setup.name else "") + " ".join(sentences)


def cards(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return headlines (title, value, note) of the setup in which repair is most accurate; none without a repaired row.

    The first is about the best repaired row. The others are about FPF after plain SGD, else the best FPF, else k-FPF.
    """
    repaired = [(setup.repaired, setup) for setup in setups(rows) if setup.repaired]
    if not repaired:
        return []
    best, setup = max(repaired, key=lambda pair: pair[0].accuracy)
    after = setup.fpf.get("sgd") or _best(setup.fpf.values()) or best
    accuracy = plus_minus(best.row.accuracies, len(best.row.records), 1)
    shown = [("Best accuracy with repair", f"{accuracy} %", best.name)]
    if before := setup.before(after):
        gain = f"{after.accuracy - before.accuracy:+.1f} points".replace("-", "\N{MINUS SIGN}")
        noise = "" if _change(before, after) else ", within noise"
        shown.append(("Gain by repair", gain, f"{after.name} compared with {before.name} alone{noise}"))
    shown.append(("Parameters repaired", _share(after), after.name))
    if (base := next(iter(setup.replays), setup.base)) and base.flops:
        title = f"Compute compared with {'replay' if setup.replays else base.name}"
        shown.append((title, f"{after.flops / base.flops:.2f} ×", f"{after.name} compared with {base.name}"))
    return [(title, value, ", ".join(filter(None, (note, setup.name)))) for title, value, note in shown]


def _best(results: Iterable[Result]) -> Result | None:
    return max(results, key=lambda result: result.accuracy, default=None)


def _result(row: Row) -> Result:
    return Result(row.name, row, [record.accuracy for record in row.records], row.tflops * 1e12)


def _before(row: Row) -> Result | None:
    """Return what the runs of a row were before FPF, if that was recorded."""
    recorded = [record.before_finetuning for record in row.records if record.before_finetuning]
    if family(row.label) != "fpf" or len(recorded) < len(row.records):
        return None
    flops = mean(sum(record.flops.values()) - record.flops.get("finetune", 0) for record in row.records)
    return Result(_name(row.settings["method"]), row, [mean(accuracies) for accuracies in recorded], flops)


def _name(method: str) -> str:
    return "plain SGD" if method == "sgd" else term(method)


def _share(result: Result) -> str:
    return f"{100 * result.row.share:.3g} %"


def _sentence(what: str, result: Result, other: Result | None = None, base: Result | None = None) -> str:
    """Return a sentence on an accuracy, how it compares with another, and the FLOPs relative to a third result."""
    text = f"{what} reaches {result.accuracy:.1f} %"
    if other:
        change = _change(other, result)
        points = f"{abs(change):.1f} points {'above' if change > 0 else 'below'}" if change else "within noise of"
        text += f", {points} {other.name}"
    if base and base.flops and result != base:
        text += f", at {result.flops / base.flops:.3g} times the compute"
        text += "" if base.name == "plain SGD" else f" of {base.name}"
    return f"{text}."


def _change(before: Result, after: Result) -> float:
    """Return the change in points, or 0 if it is at most two standard errors; of single runs, the plain difference.

    Accuracies before and after a repair of the same runs are compared run by run.
    """
    change = after.accuracy - before.accuracy
    samples = [before.accuracies, after.accuracies]
    if before.row is after.row:
        samples = [[new - old for old, new in zip(*samples, strict=True)]]
    return change if abs(change) > 2 * hypot(*(mean_std(sample).std / sqrt(len(sample)) for sample in samples)) else 0.0
