"""The figures of how parameters change during training: by group, batch norm by stage, single filters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from forgetless.experiments.record import Record
from forgetless.paper.reproduce import Figures, Finding, Item, Line, Measured, Options, listed, plan_runs, scenario
from forgetless.reports import charts

LARGE_DIGITS = "forgetless.data.benchmarks:large_digits"  # 32×32, for VGG-11


def group_dynamics(options: Options) -> list[Line]:
    """Plan the panels (a) to (h): VGG, ResNet, MLP, another data set, ER, another scenario."""

    def line(name: str, stream: str, method: str = "sgd", **given: Any) -> Line:
        return Line(name, plan_runs(stream, method, given, options))

    if options.quick or options.stream:
        stream = options.stream_or("")
        epochs: dict[str, Any] = {"epochs": 5} if options.quick else {}
        buffer = min(options.buffer or 2000, 400 if options.quick else 2000)
        return [line("SGD", stream, **epochs), line(f"ER, buffer {buffer}", stream, "er", buffer=buffer, **epochs)]
    return [
        line("a, b: VGG-11", "seq-cifar10", network="vgg11"),
        line("c, d: ResNet-18", "seq-cifar10"),
        line("e: MLP", "seq-mnist"),
        line("f: Seq-OrganAMNIST", "seq-organamnist"),
        line("g: ER, buffer 2000", "seq-cifar10", "er", buffer=2000),
        line("h: Seq-PACS", "seq-pacs"),
    ]


def judge_group_dynamics(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge when groups change and which change most, for each panel."""
    for entry in measured:
        yield from _judge_shifts(entry.line.name, entry.records)
        if scores := entry.row.sensitivity:
            yield from _judge_ranking(entry.line.name, scores, entry.records[0].settings["stream"])


def _judge_shifts(name: str, records: Sequence[Record]) -> Iterator[Finding]:
    """Judge whether all groups change more when the task switches, and whether this reveals the switch."""
    later_tasks = [entry for record in records for entry in record.epoch_changes if entry[0] > 1]
    first = [by_group for _, epoch, by_group in later_tasks if epoch == 1]
    later = [by_group for _, epoch, by_group in later_tasks if epoch > 1]
    if not later:
        return
    ratios = {g: mean(c[g] for c in first) / max(mean(c[g] for c in later), 1e-12) for g in first[0]}
    numbers = ", ".join(f"{group} {ratio:.1f} ×" for group, ratio in ratios.items())
    yield Finding(f"{name}: all groups change more in the first epoch of a task", min(ratios.values()) > 1, numbers)
    over_time = charts.group_changes(records[0])
    starts, detected = set(list(over_time.starts)[1:]), set(over_time.detected)
    numbers = f"detected {len(detected & starts)} of {len(starts)}, false alarms {len(detected - starts)}"
    yield Finding(f"{name}: the changes alone reveal where tasks begin", detected == starts, numbers)


def _judge_ranking(name: str, scores: Mapping[str, float], stream: str) -> Iterator[Finding]:
    """Judge which groups are sensitive: the last layer, the statistics, the convolutions by depth."""
    numbers = listed(scores, ".2f")
    trainable = {group: score for group, score in scores.items() if not group.endswith(".stats")}
    head = next(group for group in ("fc3", "fc") if group in scores)
    if scenario(stream) == "domain":
        first = next(group for group in ("conv1", "fc1") if group in scores)
        claim = f"{name}: the last layer is not more sensitive than the first (domain-IL)"
        yield Finding(claim, scores[head] <= scores[first], numbers)
    elif scenario(stream) == "class":
        claim = f"{name}: the last layer is the most sensitive trainable group"
        yield Finding(claim, max(trainable, key=trainable.__getitem__) == head, numbers)
    if "bn.stats" in scores:
        claim = f"{name}: the statistics of batch norm change the most"
        yield Finding(claim, scores["bn.stats"] == max(scores.values()), numbers)
    convolutions = [score for group, score in scores.items() if group.startswith(("conv", "block"))]
    if len(convolutions) > 1:
        claim = f"{name}: the closer a convolution is to the input, the more sensitive it is"
        yield Finding(claim, convolutions == sorted(convolutions, reverse=True), numbers)


def draw_group_dynamics(measured: Sequence[Measured]) -> Figures:
    """Draw the change of each group between consecutive epochs and between consecutive tasks."""
    figures = {}
    for entry in measured:
        stem = entry.line.label.split(":")[-1].strip().lower().replace(" ", "-")
        record, title = entry.records[0], f"{entry.line.name}; {entry.line.stream}"
        if max(epoch for _, epoch, _ in record.epoch_changes) > 1:
            figures[f"{stem}-epochs"] = charts.dynamics(record, f"{title}: consecutive epochs")
        if record.task_changes:
            figures[f"{stem}-tasks"] = charts.dynamics(record, f"{title}: consecutive tasks", "tasks")
    return figures


def bn_dynamics(options: Options) -> list[Line]:
    """Plan ResNet-18 with plain SGD."""
    given = {"network": "resnet18"} | ({"epochs": 2, "batch": 32, "lr": 0.03} if options.quick else {})
    return [Line("SGD", plan_runs(options.stream_or("seq-cifar10"), "sgd", given, options))]


def bn_stages(record: Record) -> dict[str, list[float]]:
    """Return the change of batch norm's weights and biases from task to task, by stage: bn1, block1 … block4.

    The result is empty for a run of one task.
    """
    stages: dict[str, list[list[float]]] = {}
    for name, values in record.tensor_changes.items():
        if re.fullmatch(r"(.*\.)?(bn\d|shortcut\.1)\.(weight|bias)", name) and values:
            stages.setdefault(name.split(".")[0], []).append(values)
    return {stage: [mean(values) for values in zip(*tensors, strict=True)] for stage, tensors in stages.items()}


def judge_bn_dynamics(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether batch norm changes less in deeper stages."""
    by_seed = [bn_stages(record) for entry in measured for record in entry.records]
    if any(by_seed):
        changes = {stage: mean(mean(stages[stage]) for stages in by_seed) for stage in by_seed[0]}
        bottom, *deeper = changes.values()
        numbers = listed(changes, ".2g")
        yield Finding("SGD: the bottom batch norm changes the most", bottom > max(deeper), numbers)
        yield Finding("SGD: deeper batch norms change less", deeper == sorted(deeper, reverse=True), numbers)


def draw_bn_dynamics(measured: Sequence[Measured]) -> Figures:
    """Draw the change of batch norm by stage over the tasks."""
    entry = measured[0]
    series = {stage: list(enumerate(values, 2)) for stage, values in bn_stages(entry.records[0]).items()}
    title = f"weights and biases of batch norm, {entry.line.stream}"
    return {"bn": charts.curves(series, "task", "mean absolute change", title, log="y")} if series else {}


def filter_dynamics(options: Options) -> list[Line]:
    """Plan VGG-11 with plain SGD, one seed."""
    stream = options.stream_or("seq-cifar10", LARGE_DIGITS)
    given = {"network": "vgg11"} | ({"epochs": 2, "batch": 16, "lr": 0.01} if options.quick else {})
    return [Line("SGD", plan_runs(stream, "sgd", given, Options(seeds=1, device=options.device)))]


def judge_filter_dynamics(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether only few filters of a layer change much when the task shifts."""
    medians, outliers, jumps = {}, {}, {}
    for layer, changes in measured[0].records[0].details["filters"].items():
        within, across = changes["within"], changes["across"]
        medians[layer] = median(across)
        outliers[layer] = mean(change > 2 * medians[layer] for change in across)
        jumps[layer] = mean(after > 2 * before for before, after in zip(within, across, strict=True))
    bottom, *_, top = medians.values()
    claim = "filters of the bottom layer change more than those of the top layer"
    yield Finding(claim, bottom > top, f"medians: {listed(medians, '.2g')}")
    claim = "at a shift, less than a quarter of the filters of each layer change more than twice the median"
    yield Finding(claim, 0 < max(outliers.values()) < 0.25, listed(outliers, ".0%"))
    claim = "at a shift, at most a quarter of the filters of each layer change more than twice as much as in a task"
    yield Finding(claim, max(jumps.values()) <= 0.25, listed(jumps, ".0%"))


def draw_filter_dynamics(measured: Sequence[Measured]) -> Figures:
    """Draw a histogram of the changes of the filters of each layer."""
    filters = measured[0].records[0].details["filters"]
    return {"filters": charts.histograms(filters, f"{measured[0].line.stream}, VGG-11")}


ITEMS: Mapping[str, Item] = {
    "dynamics": Item("Figure 1 (a–h)", "how far each group moves, over epochs and from task to task",
                     group_dynamics, judge_group_dynamics, draw_group_dynamics, unused_options=("rows",)),
    "bn-dynamics": Item("figure of batch norm", "weights and biases of batch norm by stage",
                        bn_dynamics, judge_bn_dynamics, draw_bn_dynamics, unused_options=("rows", "buffer")),
    "filter-dynamics": Item("figure of filters", "how the changes of filters are distributed",
                            filter_dynamics, judge_filter_dynamics, draw_filter_dynamics,
                            filters=True, unused_options=("rows", "buffer", "seeds")),
}  # fmt: skip
