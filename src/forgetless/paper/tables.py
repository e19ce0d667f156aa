"""The tables of the paper: the runs of their rows, the claims about them, and their figures."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from forgetless.config.catalogue import unknown
from forgetless.experiments.presets import preset_table, repair_defaults
from forgetless.paper import reproduce
from forgetless.paper.published import Target, targets
from forgetless.paper.reproduce import Figures, Finding, Item, Line, Measured, Options, listed, parse_label, plan_runs
from forgetless.reports import charts
from forgetless.reports.rows import Row, grouped
from forgetless.training.metrics import MeanStd

REPLAYING = ("er", "agem", "icarl", "fdr", "der", "derpp")


def plan_table(name: str, options: Options) -> Iterator[Line]:
    """Plan one line per number of a table that the options select.

    A quick reproduction may use a stream that the table does not have.
    """
    numbers = [target for target in targets() if target.table == name]
    labels = list(dict.fromkeys(target.label for target in numbers))
    streams = list(dict.fromkeys(target.stream for target in numbers))
    buffers = sorted({target.buffer for target in numbers if target.buffer is not None})
    for row in options.rows:
        if row not in labels:
            raise ValueError(f"{name} has {unknown('row', row, labels)}")
    rows = [label for label in labels if label in (options.rows or labels)]
    if options.quick and options.stream not in streams:
        yield from _plan_elsewhere(name, rows, options)
        return
    if options.stream not in (None, *streams):
        raise ValueError(f"{name} has {unknown('column', str(options.stream), streams)}")
    selected = [target for target in numbers if options.stream in (None, target.stream) and target.label in rows]
    selected = [target for target in selected if options.buffer is None or target.buffer in (None, options.buffer)]
    if not selected or options.buffer not in (None, *buffers):
        raise ValueError(
            f"{name} has no rows {', '.join(options.rows) or '(all)'} with buffer {options.buffer}; it has "
            f"{', '.join(labels)} with buffer {', '.join(map(str, buffers))}"
        )
    for target in selected:
        method, given = parse_label(target.label, target.stream, target.buffer)
        given |= {"network": target.network, "epochs": target.epochs, **_further_settings(target)}
        line_name = target.label
        if target.freeze:
            given["freeze"] = (target.freeze,)
            line_name += f", {target.freeze} frozen"
        if target.buffer is not None:
            given["buffer"] = target.buffer
            line_name += f", buffer {target.buffer}"
        runs = plan_runs(target.stream, method, given, options)
        yield Line(line_name, runs, target, target.metric, target.freeze)


def _plan_elsewhere(name: str, labels: Sequence[str], options: Options) -> Iterator[Line]:
    """Plan rows on a stream that the table does not have, so that there are no numbers to compare with."""
    stream = options.stream_or(reproduce.QUICK)
    mlp = reproduce.default_network(stream) == "mlp"
    groups = ("fc1", "fc2", "fc3") if mlp else ("block1", "block2", "block3", "block4", "fc")
    for label in labels:
        method, given = parse_label(label, stream, options.buffer)
        given |= options.buffer_setting
        given |= {"anytime": True} if name == "anytime" and "repair" in given else {}
        yield Line(label, plan_runs(stream, method, given, options), point="")
        for group in groups if name == "freeze" else ():
            runs = plan_runs(stream, method, {**given, "freeze": (group,)}, options)
            yield Line(f"{label}, {group} frozen", runs, point=group)


def _further_settings(target: Target) -> dict[str, Any]:
    """Return the settings in which the runs of a table differ from the defaults of their rows."""
    k_fpf = target.label.startswith("k-fpf")
    if target.table == "anytime" and k_fpf:
        return {"anytime": True}  # finetune before each evaluation, as one would before deploying the network then
    if target.table == "many-epochs" and k_fpf:
        return dict(preset_table("many_epochs").get(target.stream, {}))  # learning rates searched with 50 epochs
    if target.table != "fpf-all":
        return {}
    # The FLOPs of this table imply 100 steps each time, for k-FPF five times in all. Where S_g chooses the groups,
    # k-FPF misses the finetunings of the first task. The thresholds are the paper's: a lower one from a search can
    # choose all groups, which would leave nothing to compare.
    given: dict[str, Any] = {"steps": 100}
    if "all" not in target.label:
        given["threshold"] = repair_defaults("k-fpf" if k_fpf else "fpf")["threshold"]
    if k_fpf:
        given["every"] = reproduce.stream_steps(target.stream, target.epochs) // 5 + 1
    return given


def plan_flops_accuracy(options: Options) -> list[Line]:
    """Plan the columns of the main table with buffer 500, for their accuracy and cost."""
    lines = plan_table("table1", replace(options, buffer=options.buffer or (None if options.quick else 500)))
    streams = ("seq-pathmnist", "seq-tinyimagenet", "seq-pacs")
    return [line for line in lines if options.quick or options.stream or line.stream in streams]


def judge_improvement(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether FPF improves every method, and how k-FPF compares with the best of them."""
    for column, lines in _columns(measured).items():
        methods = [lines[method] for method in REPLAYING if method in lines]
        repaired = {entry.line.label: lines.get(f"fpf+{entry.line.label}") for entry in methods}
        gains = {label: entry.mean - lines[label].mean for label, entry in repaired.items() if entry}
        if gains:
            yield Finding(f"FPF improves every method on {column}", min(gains.values()) > 0, listed(gains, "+.1f"))
        for k_fpf in [lines[label] for label in ("k-fpf-ce", "k-fpf-kd") if label in lines and methods]:
            best = max(methods, key=lambda entry: entry.mean)
            beaten = sum(k_fpf.mean > entry.mean for entry in methods)
            claim = f"is more accurate than most replay methods on {column}, at a lower cost than the best"
            numbers = f"{k_fpf.mean:.1f} % for {k_fpf.tflops:.3g} TFLOPs; "
            numbers += f"{best.line.label} {best.mean:.1f} % for {best.tflops:.3g}"
            holds = beaten > len(methods) / 2 and k_fpf.tflops < best.tflops
            yield Finding(f"{k_fpf.line.label} {claim}", holds, numbers)


def judge_all_groups(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether finetuning the chosen groups is as good as finetuning all."""
    for chosen, everything in chosen_and_all(measured):
        pair, other = (chosen, everything), f"{everything.line.label} on {chosen.line.stream}"
        several = min(len(entry.records) for entry in pair) > 1  # a single run has no standard error
        near = f"within two standard errors of {other} or above" if several else f"at least as accurate as {other}"
        allowed = 2 * math.hypot(chosen.standard_error, everything.standard_error)
        part, full = (fmean(r.flops.get("finetune", 0) for r in entry.records) / 1e12 for entry in pair)
        times = [len(entry.records[0].finetunings) for entry in pair]
        numbers = f"{chosen.mean:.2f} and {everything.mean:.2f} %, {part:.3g} and {full:.3g} TFLOPs"
        numbers += f"; finetuned {times[0]} and {times[1]} times" if times[0] != times[1] else ""
        holds = chosen.mean >= everything.mean - allowed and part < full
        yield Finding(f"{chosen.line.label} is {near}, with fewer FLOPs", holds, numbers)


def chosen_and_all(measured: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """Return pairs of accuracies: with the groups that S_g chose, and with all groups finetuned."""
    for lines in _columns(measured).values():
        for label, chosen in lines.items():
            other = label.replace("fpf+", "fpf-all+").replace("k-fpf-ce", "k-fpf-all-ce")
            if label != other and other in lines:
                yield chosen, lines[other]


def judge_anytime(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether k-FPF is the most accurate after every task but the first."""
    for lines in _columns(measured).values():
        if k_fpf := lines.get("k-fpf-ce"):
            best = [max(values) for values in zip(*(entry.row.anytime for entry in lines.values()), strict=True)]
            curve = k_fpf.row.anytime
            behind = [task + 1 for task in range(1, len(curve)) if curve[task] < best[task]]
            numbers = f"k-FPF {', '.join(f'{value:.1f}' for value in curve)}; beaten after {behind or 'none'}"
            claim = f"after every task but the first, k-FPF has the best accuracy so far on {k_fpf.line.stream}"
            yield Finding(claim, not behind, numbers)


def judge_freezing(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether freezing a group costs accuracy, and the first block the most."""
    frozen = {entry.line.point: entry for entry in measured}  # of the numbers of a group, the last: after all tasks
    free = frozen.pop("", None)
    if free is None or not frozen:
        return
    accuracy = {group: entry.mean for group, entry in frozen.items()}
    numbers = f"none frozen {free.mean:.1f}; {listed(accuracy, '.1f')}"
    if min(len(entry.records) for entry in measured) > 1:
        errors = {group: math.hypot(free.standard_error, entry.standard_error) for group, entry in frozen.items()}
        significant = [group for group, error in errors.items() if free.mean - accuracy[group] >= 2 * error]
        numbers += f"; by two standard errors or more: {', '.join(significant) or 'none'}"
    first = "block1" if "block1" in frozen else "fc1"
    costly = max(accuracy.values()) < free.mean
    yield Finding("freezing any group after the first task costs accuracy", costly, numbers)
    yield Finding(f"freezing {first} costs the most", min(accuracy, key=accuracy.__getitem__) == first, numbers)


def judge_cost(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether k-FPF-KD beats DER++ at half of its cost."""
    for lines in _columns(measured).values():
        if {"k-fpf-kd", "derpp"} <= set(lines):
            k_fpf, derpp = lines["k-fpf-kd"], lines["derpp"]
            numbers = f"{k_fpf.mean:.1f} and {derpp.mean:.1f} %, {k_fpf.tflops:.3g} and {derpp.tflops:.3g} TFLOPs"
            claim = f"k-FPF-KD is more accurate than DER++ on {k_fpf.line.stream} with less than half of its FLOPs"
            yield Finding(claim, k_fpf.mean > derpp.mean and k_fpf.tflops < derpp.tflops / 2, numbers)


def _columns(measured: Sequence[Measured]) -> dict[str, dict[str, Measured]]:
    """Return the accuracies of each column by label; methods without a buffer are in every column of their stream."""
    columns: dict[str, dict[str, Measured]] = {}
    accuracies = [entry for entry in measured if entry.line.metric.startswith("accuracy")]
    for stream, members in grouped(accuracies, lambda entry: entry.line.stream).items():
        buffers = [entry.line.target.buffer if entry.line.target else None for entry in members]
        for column in sorted({buffer for buffer in buffers if buffer}) or [0]:  # 0: no line names a buffer
            name = f"{stream}, buffer {column}" if column else stream
            chosen = [entry for entry, buffer in zip(members, buffers, strict=True) if buffer in (None, column)]
            columns[name] = {entry.line.label: entry for entry in chosen}
    return columns


def draw_table(measured: Sequence[Measured]) -> Figures:
    """Draw the paper's numbers next to ours for each column, and accuracy over cost."""
    figures = {f"cost-{stem}": figure for stem, figure in draw_cost(measured).items()}
    for column, lines in _columns(measured).items():
        if compared := {label: entry for label, entry in lines.items() if entry.line.target}:
            paper = [MeanStd(target.mean, target.std or 0.0) for e in compared.values() if (target := e.line.target)]
            ours = [entry.values for entry in compared.values()]
            figures[f"paper-{column.replace(', buffer ', '-')}"] = charts.paired(list(compared), paper, ours, column)
    return figures


def draw_anytime(measured: Sequence[Measured]) -> Figures:
    """Draw the accuracy after each task, one figure per stream."""
    streams = grouped(measured, lambda entry: entry.line.stream).items()
    return {stream: charts.anytime([Row(e.line.name, e.records) for e in members]) for stream, members in streams}


def draw_cost(measured: Sequence[Measured]) -> Figures:
    """Draw accuracy over FLOPs, one figure per column."""
    columns = _columns(measured).items()
    return {column.replace(", buffer ", "-"): charts.cost([e.row for e in lines.values()]) for column, lines in columns}


ITEMS: Mapping[str, Item] = {
    "table1": Item("Table 1", "all methods with and without FPF, and k-FPF, on five streams",
                   partial(plan_table, "table1"), judge_improvement, draw_table),
    "mlp-vgg": Item("table of the MLP and VGG-11", "the same on Seq-MNIST and, with VGG-11, on Seq-CIFAR-10",
                    partial(plan_table, "mlp-vgg"), judge_improvement, draw_table),
    "fpf-all": Item("table FPF and FPF-ALL", "the chosen groups compared with all groups",
                    partial(plan_table, "fpf-all"), judge_all_groups, draw_table),
    "anytime": Item("tables of the accuracy after each task", "accuracy on the tasks so far",
                    partial(plan_table, "anytime"), judge_anytime, draw_anytime),
    "many-epochs": Item("table of 50 epochs", "50 epochs per task, and Rotated MNIST",
                        partial(plan_table, "many-epochs"), judge_cost, draw_table),
    "freeze": Item("table of frozen groups", "ER with a group frozen after the first task",
                   partial(plan_table, "freeze"), judge_freezing, draw_anytime),
}  # fmt: skip
FLOPS_ACCURACY = Item("figure of FLOPs and accuracy", "accuracy and cost of all methods",
                      plan_flops_accuracy, judge_improvement, draw_cost)  # fmt: skip
