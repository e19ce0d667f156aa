"""What the rows of a stream show, in sentences and headline numbers. Imports no torch.

Only rows with the same network, epochs, order of tasks and buffer are compared, and of several rows of a method the
best counts. Rows on validation are ignored if the stream has other rows. A difference counts if it exceeds two standard
errors. The noise of single runs is unknown, and the sentences say so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import hypot, sqrt
from statistics import mean

from forgetless.reports.glossary import term
from forgetless.reports.rows import Row, family, grouped, plus_minus
from forgetless.training.metrics import mean_std

REPLAY = ("er", "der", "derpp", "mir", "er_ace", "cls_er", "star", "fdr", "agem")  # methods that replay at every step
SETUP = ("network", "epochs", "order", "buffer")  # what compared rows have in common
SETUPS = 4  # a large sweep has more setups than anyone reads about


class Setup:
    """The rows of one setup, the least accurate first, and the best of them by method."""

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name, self.rows = name, rows
        self.fpf, k_fpf, alone = (
            {row.settings["method"]: row for row in rows if family(row.label) == repair}
            for repair in ("fpf", "k-fpf", "alone")
        )
        self.k_fpf, self.repaired = _best(k_fpf.values()), _best([*self.fpf.values(), *k_fpf.values()])
        # A row of the method alone, or else the runs that FPF repaired, before it.
        self.alone = {method: before for method, after in self.fpf.items() if (before := _before(after))} | alone
        replays = sorted((row for method, row in self.alone.items() if method in REPLAY), key=lambda row: row.accuracy)
        self.replays = sorted(replays[-2:], key=lambda row: row.tflops)
        self.base = self.alone.get("sgd") or next(iter(self.replays), None)  # what FLOPs are compared with

    def before(self, after: Row) -> Row | None:
        """Return what FPF repaired: the same runs before it, or else a row of the method alone."""
        return _before(after) or self.alone.get(after.settings["method"])


def setups(rows: Sequence[Row]) -> list[Setup]:
    """Return the rows by setup; sgd and joint have no buffer and belong to the setups of every buffer."""
    tested = [row for row in rows if not row.settings["validation"]] or rows
    ranked = sorted(tested, key=lambda row: row.accuracy)
    members: dict[tuple[str, ...], list[Row]] = {}
    for shared, same in grouped(ranked, lambda row: tuple(str(row.settings.get(key)) for key in SETUP[:-1])).items():
        buffers = {row.label: str(row.settings["buffer"]) for row in same if row.name not in ("sgd", "joint")}
        for buffer in dict.fromkeys(buffers.values()) or ("none",):
            key = (*shared, buffer)
            members[key] = [row for row in same if buffers.get(row.label, buffer) == buffer]
    differing = [i for i, values in enumerate(zip(*members, strict=True)) if len(set(values)) > 1]
    return [Setup(", ".join(_part(SETUP[i], key[i]) for i in differing), same) for key, same in members.items()]


def _part(name: str, value: str) -> str:
    """Return what a setup has in common, in words."""
    return "default order" if (name, value) == ("order", "None") else f"{name} {value}"


def verdict(rows: Sequence[Row]) -> list[list[str]]:
    """Return sentences per setup on what repair brings and what it costs; of many setups, the largest with repair."""
    found = setups(rows)
    largest = sorted(found, key=lambda setup: (setup.repaired is None, -len(setup.rows)))
    return [_sentences(setup) for setup in found if setup in largest[:SETUPS]]


def _sentences(setup: Setup) -> list[str]:
    alone, sentences = setup.alone, []
    if sgd := alone.get("sgd"):
        sentences.append(f"Plain SGD ends at {sgd.accuracy:.1f} %.")
    others = _best(row for method, row in setup.fpf.items() if method != "sgd")
    for after in filter(None, (setup.fpf.get("sgd"), others, setup.k_fpf)):
        before = setup.before(after)
        sentences.append(_sentence(_repairing(after), after, before or sgd, before or setup.base))
    for replay in setup.replays:
        what, repaired = f"Replay at every step ({_name(replay)})", setup.fpf.get("sgd") or setup.k_fpf
        sentences.append(_sentence(what, replay, repaired, setup.base))
    if gdumb := alone.get("gdumb"):
        sentences.append(_sentence("Training on the buffer alone (GDumb)", gdumb))
    if setup.repaired is None:
        top = setup.rows[-1]
        sentences.append(f"No row is repaired; the best of {len(setup.rows)} is {top.label} with {top.accuracy:.1f} %.")
    if joint := alone.get("joint"):
        sentences.append(_sentence("Training on all tasks at once (joint)", joint, setup.repaired))
    if any(len(row.records) == 1 for row in setup.rows):
        sentences.append("Rows without ± are single runs, whose noise is unknown.")
    name = f"{setup.name[0].upper()}{setup.name[1:]}: " if setup.name else ""
    return [name + sentences[0], *sentences[1:]]


def cards(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return headlines (title, value, note) of the setup in which repair is most accurate; none without a repaired row.

    The first is about the best repaired row. The others are about FPF after plain SGD, else the best FPF, else k-FPF.
    """
    repaired = [(setup.repaired, setup) for setup in setups(rows) if setup.repaired]
    if not repaired:
        return []
    best, setup = max(repaired, key=lambda pair: pair[0].accuracy)
    after = setup.fpf.get("sgd") or _best(setup.fpf.values()) or best
    accuracy = plus_minus(best.accuracies, len(best.records), 1)
    shown = [("Best accuracy with repair", f"{accuracy} %", _name(best))]
    if before := setup.before(after):
        gain = f"{after.accuracy - before.accuracy:+.1f} points".replace("-", "\N{MINUS SIGN}")
        noise = "" if _change(before, after) else ", within noise"
        shown.append(("Gain by repair", gain, f"{_name(after)} compared with {_name(before)} alone{noise}"))
    shown.append(("Parameters repaired", _share(after), _name(after)))
    if (base := next(iter(setup.replays), setup.base)) and base.tflops:
        title = f"Compute compared with {'replay' if setup.replays else _name(base)}"
        shown.append((title, f"{after.tflops / base.tflops:.2f} ×", f"{_name(after)} compared with {_name(base)}"))
    return [(title, value, ", ".join(filter(None, (note, setup.name)))) for title, value, note in shown]


def _best(rows: Iterable[Row]) -> Row | None:
    return max(rows, key=lambda row: row.accuracy, default=None)


def _before(row: Row) -> Row | None:
    """Return the runs of a row as they were before FPF, if that was recorded."""
    records = []
    for record in row.records if family(row.label) == "fpf" else ():
        if record.before_finetuning:
            flops = {phase: count for phase, count in record.flops.items() if phase != "finetune"}
            records.append(replace(record, accuracy=mean(record.before_finetuning), flops=flops))
    return Row(row.settings["method"], tuple(records)) if len(records) == len(row.records) else None


def _name(row: Row) -> str:
    if family(row.label) != "alone":
        return row.name
    return "plain SGD" if row.name == "sgd" else term(row.name)


def _share(row: Row) -> str:
    return f"{100 * row.share:.3g} %"


def _repairing(row: Row) -> str:
    """Return what the repairs of a row did."""
    if not row.share:
        return f"{_name(row)}, whose repairs changed nothing,"
    when = "at intervals" if any(len(record.finetunings) > 1 for record in row.records) else "afterwards"
    return f"Repairing {_share(row)} of the parameters {when} ({_name(row)})"


def _sentence(what: str, row: Row, other: Row | None = None, base: Row | None = None) -> str:
    """Return a sentence on an accuracy, how it compares with another, and the FLOPs relative to a third row."""
    text = f"{what} reaches {row.accuracy:.1f} %"
    if other:
        change = _change(other, row)
        points = f"{abs(change):.1f} points {'above' if change > 0 else 'below'}" if change else "within noise of"
        text += f", {points} {_name(other)}"
    if base and base.tflops and row is not base:
        text += f", at {row.tflops / base.tflops:.2f} times the compute"
        text += "" if base.name == "sgd" else f" of {_name(base)}"
    return f"{text}."


def _change(before: Row, after: Row) -> float:
    """Return the change in points, or 0 if it rounds to 0.0 or is at most two standard errors.

    Accuracies before and after a repair of the same runs are compared run by run. Single runs have no standard error.
    """
    change = after.accuracy - before.accuracy
    samples = [[record.accuracy for record in row.records] for row in (before, after)]
    if [record.id for record in before.records] == [record.id for record in after.records]:
        samples = [[new - old for old, new in zip(*samples, strict=True)]]
    noise = 2 * hypot(*(mean_std(sample).std / sqrt(len(sample)) for sample in samples))
    return change if abs(change) > max(noise, 0.05) else 0.0
