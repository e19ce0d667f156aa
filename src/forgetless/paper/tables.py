"""The tables of the paper: the runs of their rows, the claims about them, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import unknown
from forgetless.experiments.presets import preset_table, repair_defaults
from forgetless.paper import reproduce
from forgetless.paper.published import Target, targets
from forgetless.paper.reproduce import Finding, Item, Line, Measured, Options, listed, parse_label, plan_runs
from forgetless.reports import charts
from forgetless.reports.rows import Row, grouped
from forgetless.training.metrics import MeanStd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLAYING = ("er", "agem", "icarl", "fdr", "der", "derpp")


def plan_table(name: str, adjust: Callable[[Target], Mapping[str, Any]] | None, options: Options) -> Iterator[Line]:
    """Plan one line per number of a table that the options select; ``adjust`` returns further settings of a row.

    A quick reproduction may use a stream that the table does not have.
    """
    numbers = [target for target in targets() if target.table == name]
    labels = list(dict.fromkeys(target.label for target in numbers))
    streams = list(dict.fromkeys(target.stream for target in numbers))
    buffers = sorted({target.buffer for target in numbers if target.buffer is not None})
    for row in options.rows:
        if row not in labels:
            raise ValueError(f"{name} has {unknown('row', row, labels)}")
    rows = [label for label in labels if not options.rows or label in options.rows]
    if options.quick and options.stream not in streams:
        yield from _plan_elsewhere(name, rows, options)
        return
    if options.stream not in (None, *streams):
        raise ValueError(f"{name} has {unknown('column', str(options.stream), streams)}")
    selected = [target for target in numbers if options.stream in (None, target.stream) and target.label in rows]
    if options.buffer is not None:
        selected = [target for target in selected if target.buffer in (None, options.buffer)]
    if not selected or options.buffer not in (None, *buffers):
        raise ValueError(
            f"{name} has no rows {', '.join(options.rows) or '(all)'} with buffer {options.buffer}; it has "
            f"{', '.join(labels)} with buffer {', '.join(map(str, buffers))}"
        )
    for target in selected:
        method, given = parse_label(target.label, target.stream, target.buffer)
        given |= {"network": target.network, "epochs": target.epochs}
        given |= {} if target.buffer is None else {"buffer": target.buffer}
        given |= {"freeze": (target.freeze,)} if target.freeze else {}
        given |= adjust(target) if adjust else {}
        frozen = f", {target.freeze} frozen" if target.freeze else ""
        buffer = "" if target.buffer is None else f", buffer {target.buffer}"
        runs = plan_runs(target.stream, method, given, options)
        yield Line(target.label + frozen + buffer, runs, target, target.metric, target.freeze)


def _plan_elsewhere(name: str, labels: Sequence[str], options: Options) -> Iterator[Line]:
    """Plan rows on a stream that the table does not have, so that there are no numbers to compare with."""
    stream = options.stream_or(reproduce.QUICK)
    mlp = reproduce.default_network(stream) == "mlp"
    groups = ("fc1", "fc2", "fc3") if mlp else ("block1", "block2", "block3", "block4", "fc")
    for label in labels:
        method, given = parse_label(label, stream, options.buffer)
        given |= options.buffer_setting
        given |= {"anytime": True} if name == "anytime" and "repair" in given else {}
        for group in ("", *groups) if name == "freeze" else ("",):
            runs = plan_runs(stream, method, given | ({"freeze": (group,)} if group else {}), options)
            yield Line(label + (f", {group} frozen" if group else ""), runs, point=group)


def plan_flops_accuracy(options: Options) -> list[Line]:
    """Plan the columns of the main table with buffer 500, for their accuracy and cost."""
    lines = plan_table("table1", None, replace(options, buffer=options.buffer or (None if options.quick else 500)))
    streams = ("seq-pathmnist", "seq-tinyimagenet", "seq-pacs")
    return [line for line in lines if options.quick or options.stream or line.stream in streams]


def _finetune_after_each_task(target: Target) -> dict[str, Any]:
    """Finetune k-FPF before each evaluation, as one would before deploying the network then."""
    return {"anytime": True} if target.label.startswith("k-fpf") else {}


def _paper_schedule(target: Target) -> dict[str, Any]:
    """Return the set-up that the FLOPs of this table imply: 100 steps each time, for k-FPF five times in all.

    Where S_g chooses the groups, k-FPF misses the finetunings of the first task. The thresholds are the paper's: a
    lower one from a search can choose all groups, which would leave nothing to compare.
    """
    repair = "k-fpf" if target.label.startswith("k-fpf") else "fpf"
    given: dict[str, Any] = {"steps": 100}
    if "all" not in target.label:
        given["threshold"] = repair_defaults(repair)["threshold"]
    if repair == "k-fpf":
        given["every"] = reproduce.stream_steps(target.stream, target.epochs) // 5 + 1
    return given


def _many_epochs_rates(target: Target) -> dict[str, Any]:
    """Return the learning rates of k-FPF that were searched with 50 epochs."""
    return dict(preset_table("many_epochs").get(target.stream, {})) if target.label.startswith("k-fpf") else {}


def judge_improvement(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether FPF improves every method, and how k-FPF compares with the best of them."""
    for column, accuracy in _accuracies(measured).items():
        methods = [method for method in REPLAYING if method in accuracy]
        gains = {m: accuracy[f"fpf+{m}"].mean - accuracy[m].mean for m in methods if f"fpf+{m}" in accuracy}
        if gains:
            claim = f"FPF improves every method on {column}"
            yield Finding(claim, min(gains.values()) > 0, listed(gains, "+.1f"))
        for label in [label for label in ("k-fpf-ce", "k-fpf-kd") if label in accuracy and methods]:
            k_fpf, best = accuracy[label], max((accuracy[m] for m in methods), key=lambda entry: entry.mean)
            beaten = sum(k_fpf.mean > accuracy[method].mean for method in methods)
            claim = f"{label} is more accurate than most replay methods on {column}, at a lower cost than the best"
            numbers = f"{k_fpf.mean:.1f} % for {k_fpf.tflops:.3g} TFLOPs; "
            numbers += f"{best.line.label} {best.mean:.1f} % for {best.tflops:.3g}"
            yield Finding(claim, beaten > len(methods) / 2 and k_fpf.tflops < best.tflops, numbers)


def judge_all_groups(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether finetuning the chosen groups is as good as finetuning all."""
    for chosen, everything in chosen_and_all(measured):
        pair, other = (chosen, everything), f"{everything.line.label} on {chosen.line.stream}"
        several = min(len(entry.records) for entry in pair) > 1  # a single run has no standard error
        near = f"within two standard errors of {other} or above" if several else f"at least as accurate as {other}"
        allowed = 2 * reproduce.standard_error(*((entry.values.std, len(entry.records)) for entry in pair))
        part, full = (fmean(r.flops.get("finetune", 0) for r in entry.records) / 1e12 for entry in pair)
        times = [len(entry.records[0].finetunings) for entry in pair]
        numbers = f"{chosen.mean:.2f} and {everything.mean:.2f} %, {part:.3g} and {full:.3g} TFLOPs"
        numbers += f"; finetuned {times[0]} and {times[1]} times" if times[0] != times[1] else ""
        holds = chosen.mean >= everything.mean - allowed and part < full
        yield Finding(f"{chosen.line.label} is {near}, with fewer FLOPs", holds, numbers)


def chosen_and_all(measured: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """Return pairs of accuracies: with the groups that S_g chose, and with all groups finetuned."""
    for accuracy in _accuracies(measured).values():
        for label, chosen in accuracy.items():
            other = label.replace("fpf+", "fpf-all+").replace("k-fpf-ce", "k-fpf-all-ce")
            if label != other and other in accuracy:
                yield chosen, accuracy[other]


def judge_anytime(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether k-FPF is the most accurate after every task but the first."""
    for members in _by_column(measured).values():
        curves = {entry.line.label: entry.row.anytime for entry in members}
        if "k-fpf-ce" in curves:
            k_fpf = curves.pop("k-fpf-ce")
            behind = [t + 1 for t in range(1, len(k_fpf)) if any(other[t] > k_fpf[t] for other in curves.values())]
            numbers = f"k-FPF {', '.join(f'{value:.1f}' for value in k_fpf)}; beaten after {behind or 'none'}"
            claim = f"after every task but the first, k-FPF has the best accuracy so far on {members[0].line.stream}"
            yield Finding(claim, not behind, numbers)


def judge_freezing(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether freezing a group costs accuracy, and the first block the most."""
    rows = {entry.line.point: entry.row for entry in measured}
    if "" not in rows or len(rows) < 2:
        return
    free = rows.pop("")
    accuracy = {group: row.accuracy for group, row in rows.items()}
    numbers = f"none frozen {free.accuracy:.1f}; {listed(accuracy, '.1f')}"
    if len(free.records) > 1:
        errors = {
            group: reproduce.standard_error((row.std, len(row.records)), (free.std, len(free.records)))
            for group, row in rows.items()
            if len(row.records) > 1
        }
        significant = [group for group, error in errors.items() if free.accuracy - accuracy[group] >= 2 * error]
        numbers += f"; by two standard errors or more: {', '.join(significant) or 'none'}"
    first = "block1" if "block1" in rows else "fc1"
    costly = max(accuracy.values()) < free.accuracy
    yield Finding("freezing any group after the first task costs accuracy", costly, numbers)
    yield Finding(f"freezing {first} costs the most", min(rows, key=accuracy.__getitem__) == first, numbers)


def judge_cost(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether k-FPF-KD beats DER++ at half of its cost."""
    for accuracy in _accuracies(measured).values():
        if {"k-fpf-kd", "derpp"} <= set(accuracy):
            k_fpf, derpp = accuracy["k-fpf-kd"], accuracy["derpp"]
            numbers = f"{k_fpf.mean:.1f} and {derpp.mean:.1f} %, {k_fpf.tflops:.3g} and {derpp.tflops:.3g} TFLOPs"
            claim = f"k-FPF-KD is more accurate than DER++ on {k_fpf.line.stream} with less than half of its FLOPs"
            yield Finding(claim, k_fpf.mean > derpp.mean and k_fpf.tflops < derpp.tflops / 2, numbers)


def _by_column(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Return the lines of each column by its name; methods without a buffer are in every column of their stream."""
    columns: dict[str, list[Measured]] = {}
    for stream, members in grouped(measured, lambda entry: entry.line.stream).items():
        buffers = [entry.line.target.buffer if entry.line.target else None for entry in members]
        for column in sorted({buffer for buffer in buffers if buffer}):
            name = f"{stream}, buffer {column}"
            columns[name] = [entry for entry, buffer in zip(members, buffers, strict=True) if buffer in (None, column)]
        if not any(buffers):
            columns[stream] = members
    return columns


def _accuracies(measured: Sequence[Measured]) -> dict[str, dict[str, Measured]]:
    """Return the lines of each column that measure the final accuracy, by label."""
    return {
        column: {entry.line.label: entry for entry in members if entry.line.metric == "accuracy"}
        for column, members in _by_column(measured).items()
    }


def draw_table(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw the paper's numbers next to ours for each column, and accuracy over cost."""
    figures = {}
    for column, accuracy in _accuracies(measured).items():
        compared = {label: (target, entry.values) for label, entry in accuracy.items() if (target := entry.line.target)}
        stem = column.replace(", buffer ", "-")
        if compared:
            paper = [MeanStd(target.mean, target.std or 0.0) for target, _ in compared.values()]
            ours = [values for _, values in compared.values()]
            figures[f"paper-{stem}"] = charts.paired(list(compared), paper, ours, column)
        if accuracy:
            figures[f"cost-{stem}"] = charts.cost([entry.row for entry in accuracy.values()])
    return figures


def draw_anytime(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw the accuracy after each task, one figure per stream."""
    figures = {}
    for stream, members in grouped(measured, lambda entry: entry.line.stream).items():
        rows = {entry.line.name: Row(entry.line.name, entry.records) for entry in members}
        figures[stream] = charts.anytime(list(rows.values()))
    return figures


def draw_cost(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw accuracy over FLOPs, one figure per column."""
    columns = {column.replace(", buffer ", "-"): lines for column, lines in _by_column(measured).items()}
    return {stem: charts.cost([entry.row for entry in lines]) for stem, lines in columns.items()}


ITEMS: Mapping[str, Item] = {
    "table1": Item("Table 1", "all methods with and without FPF, and k-FPF, on five streams",
                   partial(plan_table, "table1", None), judge_improvement, draw_table),
    "mlp-vgg": Item("table of the MLP and VGG-11", "the same on Seq-MNIST and, with VGG-11, on Seq-CIFAR-10",
                    partial(plan_table, "mlp-vgg", None), judge_improvement, draw_table),
    "fpf-all": Item("table FPF and FPF-ALL", "the chosen groups compared with all groups",
                    partial(plan_table, "fpf-all", _paper_schedule), judge_all_groups, draw_table),
    "anytime": Item("tables of the accuracy after each task", "accuracy on the tasks so far",
                    partial(plan_table, "anytime", _finetune_after_each_task), judge_anytime, draw_anytime),
    "many-epochs": Item("table of 50 epochs", "50 epochs per task, and Rotated MNIST",
                        partial(plan_table, "many-epochs", _many_epochs_rates), judge_cost, draw_table),
    "freeze": Item("table of frozen groups", "ER with a group frozen after the first task",
                   partial(plan_table, "freeze", None), judge_freezing, draw_anytime),
}  # fmt: skip
FLOPS_ACCURACY = Item("figure of FLOPs and accuracy", "accuracy and cost of all methods",
                      plan_flops_accuracy, judge_improvement, draw_cost)  # fmt: skip
