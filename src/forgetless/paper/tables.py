"""The tables of the paper: its rows on its streams, what it says of them, and their pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, variance
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import check_name, unknown
from forgetless.experiments.presets import MANY_EPOCHS, REPAIR
from forgetless.experiments.record import Record
from forgetless.paper.published import Target, targets
from forgetless.paper.reproduce import QUICK, Finding, Item, Line, Measured, Options, network, planned, steps, way
from forgetless.reports import charts as figures
from forgetless.reports.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FREEZABLE = {True: ("fc1", "fc2", "fc3"), False: ("block1", "block2", "block3", "block4", "fc")}  # of an MLP, a ResNet
REPLAYING = ("er", "agem", "icarl", "fdr", "der", "derpp")


def table(name: str, change: Callable[[Target], Mapping[str, Any]] | None, options: Options) -> list[Line]:
    """The rows of a table of the paper that the options ask for."""
    found = [target for target in targets() if target.table == name]
    known = dict.fromkeys(target.label for target in found)
    for row in options.rows:
        if row not in known:
            raise ValueError(f"{name} has {unknown('row', row, known)}")
    if options.quick and options.stream not in {target.stream for target in found}:
        return _elsewhere(name, found, options)
    chosen = [
        target
        for target in found
        if options.stream in (None, target.stream)
        and (options.buffer is None or target.buffer in (None, options.buffer))
        and (not options.rows or target.label in options.rows)
    ]
    buffers = {target.buffer for target in found}
    if not chosen or (options.buffer is not None and options.buffer not in buffers):
        raise ValueError(_nothing(name, found, options))
    lines = []
    for target in chosen:
        method, given = way(target.label, target.stream, target.buffer)
        given |= {"network": target.network, "epochs": target.epochs}
        if target.buffer is not None:
            given["buffer"] = target.buffer
        if target.freeze:
            given["freeze"] = (target.freeze,)
        if change is not None:
            given |= change(target)
        where = "" if target.buffer is None else f", buffer {target.buffer}"
        frozen = f", {target.freeze} frozen" if target.freeze else ""
        runs = planned(target.stream, method, given, options)
        lines.append(Line(target.label + frozen + where, runs, target, target.metric, (target.freeze,)))
    return lines


def _elsewhere(name: str, found: Sequence[Target], options: Options) -> list[Line]:
    """The rows of a table on a stream the paper does not have in it; there is no number to compare with."""
    stream = options.stream or QUICK
    check_name("stream", stream)
    lines = []
    for label in dict.fromkeys(target.label for target in found):
        if options.rows and label not in options.rows:
            continue
        method, given = way(label, stream, options.buffer)
        given |= {} if options.buffer is None else {"buffer": options.buffer}
        given |= {"anytime": True} if name == "anytime" and "repair" in given else {}
        for group in ("", *FREEZABLE[network(stream) == "mlp"]) if name == "freeze" else ("",):
            own = given | ({"freeze": (group,)} if group else {})
            lines.append(
                Line(label + (f", {group} frozen" if group else ""), planned(stream, method, own, options), at=(group,))
            )
    if not lines:
        raise ValueError(_nothing(name, found, options))
    return lines


def _nothing(name: str, found: Sequence[Target], options: Options) -> str:
    streams = list(dict.fromkeys(target.stream for target in found))
    if options.stream is not None and options.stream not in streams:
        return f"{name} has {unknown('column', options.stream, streams)}"
    labels = list(dict.fromkeys(target.label for target in found))
    buffers = sorted({target.buffer for target in found if target.buffer is not None})
    return (
        f"{name} has no rows {', '.join(options.rows) or '(all)'} with buffer {options.buffer}; it has "
        f"{', '.join(labels)} with buffer {', '.join(map(str, buffers))}"
    )


def _anytime(target: Target) -> dict[str, Any]:
    """k-FPF after a task is a network that could be handed over there: one that was finetuned."""
    return {"anytime": True} if target.label.startswith("k-fpf") else {}


def _fpf_all(target: Target) -> dict[str, Any]:
    """The set-up that the FLOPs of this table give away: 100 steps each time, five times in all for k-FPF.

    Where S_g chooses, k-FPF misses those in the first task.
    With the paper's thresholds: a lower one from a search can take all groups, and there would be nothing to compare.
    """
    often = target.label.startswith("k-fpf")
    given: dict[str, Any] = {"steps": 100}
    if "all" not in target.label:
        given["threshold"] = REPAIR["k-fpf" if often else "fpf"]["threshold"]
    if often:
        given["every"] = steps(target.stream, target.epochs) // 5 + 1
    return given


def _many_epochs(target: Target) -> dict[str, Any]:
    """Learning rates that were searched for with so many epochs."""
    return dict(MANY_EPOCHS.get(target.stream, {})) if target.label.startswith("k-fpf") else {}


def fpf_improves(found: Sequence[Measured]) -> list[Finding]:
    """Does FPF improve every method, and how do k-FPF's accuracy and cost compare with the best of them?"""
    findings = []
    for (stream, where), members in _by_column(found).items():
        accuracy = _accuracies(members)
        gains = {m: accuracy[f"fpf+{m}"].mean - accuracy[m].mean for m in REPLAYING if {m, f"fpf+{m}"} <= set(accuracy)}
        if gains:
            numbers = ", ".join(f"{method} {gain:+.1f}" for method, gain in gains.items())
            claim = f"FPF improves every method on {stream}{where}"
            findings.append(Finding(claim, all(gain > 0 for gain in gains.values()), numbers))
        others = [accuracy[m] for m in REPLAYING if m in accuracy]
        for label in ("k-fpf-ce", "k-fpf-kd"):
            if label in accuracy and others:
                best, own = max(others, key=lambda one: one.mean), accuracy[label]
                name = _label(best)
                findings.append(
                    Finding(
                        f"{label} is more accurate than most replaying methods on {stream}{where}, at less cost than "
                        "the best of them",
                        sum(own.mean > one.mean for one in others) > len(others) / 2 and own.tflops < best.tflops,
                        f"{own.mean:.1f} % for {own.tflops:.3g} TFLOPs; {name} {best.mean:.1f} % for {best.tflops:.3g}",
                    )
                )
    return findings


def fpf_is_enough(found: Sequence[Measured]) -> list[Finding]:
    """Is finetuning the chosen groups as good as finetuning all?"""
    findings = []
    for one, all_ in chosen_and_all(found):
        part, whole, stream = _label(one), _label(all_), one.line.stream
        costs = [sum(r.flops.get("finetune", 0) for r in m.records) / len(m.records) for m in (one, all_)]
        several = min(len(one.records), len(all_.records)) > 1  # of one run there is no standard error
        near = (
            f"within two standard errors of {whole} on {stream} or above it"
            if several
            else f"at least as accurate as {whole} on {stream}"
        )
        times = [len(m.records[0].finetunings) for m in (one, all_)]
        findings.append(
            Finding(
                f"{part} is {near}, for fewer FLOPs",
                one.mean >= all_.mean - 2 * _noise(one.records, all_.records) and costs[0] < costs[1],
                f"{one.mean:.2f} and {all_.mean:.2f} %, {costs[0] / 1e12:.3g} and {costs[1] / 1e12:.3g} TFLOPs"
                + (f"; finetuned {times[0]} and {times[1]} times" if times[0] != times[1] else ""),
            )
        )
    return findings


def chosen_and_all(found: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """The accuracies of FPF, or k-FPF, with the chosen groups, each beside that with all of them."""
    pairs = []
    for members in _by_column(found).values():
        accuracy = _accuracies(members)
        for part, one in accuracy.items():
            whole = part.replace("fpf+", "fpf-all+").replace("k-fpf-ce", "k-fpf-all-ce")
            if part != whole and whole in accuracy:
                pairs.append((one, accuracy[whole]))
    return pairs


def _noise(*samples: Sequence[Record]) -> float:
    """The standard error of a difference between mean accuracies; of one run there is none."""
    several = [[made.accuracy for made in records] for records in samples if len(records) > 1]
    return float(sum(variance(values) / len(values) for values in several) ** 0.5)


def anytime_best(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for (stream, _), members in _by_column(found).items():
        curves = {_label(one): Row(one.line.name, one.records).anytime for one in members}
        if "k-fpf-ce" in curves:
            own = curves.pop("k-fpf-ce")
            behind = [t + 1 for t in range(1, len(own)) if any(other[t] > own[t] for other in curves.values())]
            numbers = f"k-FPF {', '.join(f'{v:.1f}' for v in own)}; beaten after {behind or 'none'}"
            claim = f"after every task but the first, k-FPF has the best accuracy so far on {stream}"
            findings.append(Finding(claim, not behind, numbers))
    return findings


def freezing_hurts(found: Sequence[Measured]) -> list[Finding]:
    last = {one.line.at[0]: one.records for one in found}
    if "" not in last or len(last) < 2:
        return []
    accuracy = {group: mean(made.accuracy for made in records) for group, records in last.items()}
    free = accuracy.pop("")
    numbers = f"none frozen {free:.1f}; " + ", ".join(f"{group} {value:.1f}" for group, value in accuracy.items())
    sure = [
        group
        for group, value in accuracy.items()
        if len(last[group]) > 1 and free - value >= 2 * _noise(last[group], last[""])
    ]
    numbers += f"; by two standard errors or more: {', '.join(sure) or 'none'}" if len(last[""]) > 1 else ""
    worst = min(accuracy, key=lambda group: accuracy[group])
    first = "block1" if "block1" in accuracy else "fc1"
    return [
        Finding("freezing any group after the first task costs accuracy", max(accuracy.values()) < free, numbers),
        Finding(f"freezing {first} costs the most", worst == first, numbers),
    ]


def cheaper(found: Sequence[Measured]) -> list[Finding]:
    """k-FPF-KD beside DER++, accuracy and cost."""
    findings = []
    for (stream, _), members in _by_column(found).items():
        accuracy = _accuracies(members)
        if {"k-fpf-kd", "derpp"} <= set(accuracy):
            one, other = accuracy["k-fpf-kd"], accuracy["derpp"]
            numbers = f"{one.mean:.1f} and {other.mean:.1f} %, {one.tflops:.3g} and {other.tflops:.3g} TFLOPs"
            claim = f"k-FPF-KD is more accurate than DER++ on {stream} for less than half of its FLOPs"
            findings.append(Finding(claim, one.mean > other.mean and one.tflops < other.tflops / 2, numbers))
    return findings


def _label(one: Measured) -> str:
    """What its table calls it, without the buffer or what is frozen."""
    return one.line.name.partition(", ")[0]


def _accuracies(found: Sequence[Measured]) -> dict[str, Measured]:
    """The lines that are accuracies, by their label."""
    return {_label(one): one for one in found if one.line.metric == "accuracy"}


def _by_column(found: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """By stream and buffer; runs without a buffer in each."""
    streams = dict.fromkeys(one.line.stream for one in found)
    columns: dict[tuple[str, str], list[Measured]] = {}
    for stream in streams:
        members = [one for one in found if one.line.stream == stream]
        buffers = sorted({one.line.target.buffer or 0 for one in members if one.line.target}) or [0]
        for buffer in [b for b in buffers if b] or [0]:
            where = f", buffer {buffer}" if buffer else ""
            columns[stream, where] = [
                one for one in members if one.line.target is None or one.line.target.buffer in (None, buffer)
            ]
    return columns


def draw_table(found: Sequence[Measured]) -> dict[str, Figure]:
    """The paper's numbers beside ours for each column, and accuracy by cost."""
    pictures = {}
    for (stream, where), members in _by_column(found).items():
        lines = [one for one in members if one.line.metric == "accuracy"]
        name = stream + where.replace(", buffer ", "-")
        compared = [
            (_label(one), (one.line.target.mean, one.line.target.std or 0.0), (one.mean, one.std))
            for one in lines
            if one.line.target
        ]
        if compared:
            pictures[f"paper-{name}"] = figures.paired(compared, f"{stream}{where}")
        if lines:
            pictures[f"cost-{name}"] = draw_cost(lines)
    return pictures


def draw_cost(found: Sequence[Measured]) -> Figure:
    return figures.cost([Row(_label(one), one.records) for one in found])


def draw_anytime(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for stream in dict.fromkeys(one.line.stream for one in found):
        own = {one.line.name: Row(one.line.name, one.records) for one in found if one.line.stream == stream}
        pictures[stream] = figures.anytime(list(own.values()))
    return pictures


def flops_accuracy(options: Options) -> list[Line]:
    """The columns of the main table with buffer 500, for their accuracy and cost."""
    lines = table("table1", None, replace(options, buffer=options.buffer or (None if options.quick else 500)))
    if options.quick or options.stream:
        return lines
    streams = ("seq-pathmnist", "seq-tinyimagenet", "seq-pacs")
    return [line for line in lines if line.stream in streams]


def draw_flops(found: Sequence[Measured]) -> dict[str, Figure]:
    return {
        f"{stream}{where.replace(', buffer ', '-')}": draw_cost(own)
        for (stream, where), own in _by_column(found).items()
    }


ITEMS: Mapping[str, Item] = {
    "table1": Item(
        "Table 1", "all methods with and without FPF, and k-FPF, on five streams", partial(table, "table1", None),
        fpf_improves, draw_table, ("table1",),
    ),
    "mlp-vgg": Item(
        "table of the MLP and VGG-11", "the same on Seq-MNIST and, with VGG-11, on Seq-CIFAR-10",
        partial(table, "mlp-vgg", None), fpf_improves, draw_table, ("mlp-vgg",),
    ),
    "fpf-all": Item(
        "table FPF and FPF-ALL", "the chosen groups beside all of them", partial(table, "fpf-all", _fpf_all),
        fpf_is_enough, draw_table, ("fpf-all",),
    ),
    "anytime": Item(
        "tables of the accuracy after each task", "accuracy on the tasks so far", partial(table, "anytime", _anytime),
        anytime_best, draw_anytime, ("anytime",),
    ),
    "many-epochs": Item(
        "table of 50 epochs", "50 epochs a task, and Rotated MNIST", partial(table, "many-epochs", _many_epochs),
        cheaper, draw_table, ("many-epochs",),
    ),
    "freeze": Item(
        "table of frozen groups", "ER with a group frozen after the first task", partial(table, "freeze", None),
        freezing_hurts, draw_anytime, ("freeze",),
    ),
}  # fmt: skip
