"""The figures of how parameters move: groups, batch norm by stage, filters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import check_name
from forgetless.experiments.record import Record
from forgetless.paper.reproduce import QUICK, Finding, Item, Line, Measured, Options, planned, scenario
from forgetless.reports import charts as figures
from forgetless.reports.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = "forgetless.data.benchmarks:large_digits"  # 32×32, for VGG-11


def dynamics(options: Options) -> list[Line]:
    """The panels (a) to (h): VGG, ResNet, MLP, another data set, ER, another scenario."""
    panels: list[tuple[str, str, str, dict[str, Any]]]
    if options.quick or options.stream:
        stream = options.stream or QUICK
        check_name("stream", stream)
        buffer = min(options.buffer or 2000, 400 if options.quick else 2000)
        panels = [("SGD", stream, "sgd", {}), (f"ER, buffer {buffer}", stream, "er", {"buffer": buffer})]
        if options.quick:
            panels = [(name, stream, method, given | {"epochs": 5}) for name, stream, method, given in panels]
    else:
        panels = [
            ("a, b: VGG-11", "seq-cifar10", "sgd", {"network": "vgg11"}),
            ("c, d: ResNet-18", "seq-cifar10", "sgd", {}),
            ("e: MLP", "seq-mnist", "sgd", {}),
            ("f: Seq-OrganAMNIST", "seq-organamnist", "sgd", {}),
            ("g: ER, buffer 2000", "seq-cifar10", "er", {"buffer": 2000}),
            ("h: Seq-PACS", "seq-pacs", "sgd", {}),
        ]
    return [Line(name, planned(stream, method, given, options)) for name, stream, method, given in panels]


def dynamics_findings(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for one in found:
        name, record = one.line.name, one.records[0]
        findings += _at_switches(name, one.records) + _ranking(name, Row(name, one.records).sensitivity, record)
    return findings


def _at_switches(name: str, records: Sequence[Record]) -> list[Finding]:
    """Do all groups change more when the task switches, and can that be told from the changes alone?"""
    rows = [row for record in records for row in record.epoch_changes]
    if max(epoch for _, epoch, _ in rows) < 2 or max(task for task, _, _ in rows) < 2:
        return []
    ratios = {}
    for group in rows[0][2]:
        first = [changes[group] for task, epoch, changes in rows if epoch == 1 and task > 1]
        later = [changes[group] for task, epoch, changes in rows if epoch > 1 and task > 1]
        ratios[group] = (sum(first) / len(first)) / max(sum(later) / len(later), 1e-12)
    numbers = ", ".join(f"{group} {ratio:.1f} ×" for group, ratio in ratios.items())
    findings = [
        Finding(f"{name}: all groups change more in the first epoch of a task", min(ratios.values()) > 1, numbers)
    ]
    starts = [i for i, row in enumerate(records[0].epoch_changes) if row[1] == 1 and row[0] > 1]
    seen = records[0].boundaries
    findings.append(
        Finding(
            f"{name}: the changes alone tell where tasks begin",
            seen == starts,
            f"found {len(set(seen) & set(starts))} of {len(starts)}, {len(set(seen) - set(starts))} where none is",
        )
    )
    return findings


def _ranking(name: str, scores: Mapping[str, float], record: Record) -> list[Finding]:
    """Which groups are sensitive: the last layer, statistics, and the convolutions by depth."""
    if not scores:
        return []
    numbers = ", ".join(f"{group} {score:.2f}" for group, score in scores.items())
    trainable = {group: score for group, score in scores.items() if not group.endswith(".stats")}
    head = next(group for group in ("fc3", "fc") if group in scores)
    findings = []
    kind = scenario(record.settings["stream"])
    if kind == "domain":
        first = next(group for group in ("conv1", "fc1") if group in scores)
        claim = f"{name}: the last layer is no more sensitive than the first (domain-IL)"
        findings.append(Finding(claim, scores[head] <= scores[first], numbers))
    elif kind == "class":
        claim = f"{name}: the last layer is the most sensitive of those that are trained"
        findings.append(Finding(claim, max(trainable, key=lambda g: trainable[g]) == head, numbers))
    if "bn.stats" in scores:
        claim = f"{name}: the statistics of batch norm change the most"
        findings.append(Finding(claim, max(scores, key=lambda g: scores[g]) == "bn.stats", numbers))
    convolutions = [score for group, score in scores.items() if group.startswith(("conv", "block"))]
    if len(convolutions) > 1:
        claim = f"{name}: convolutions are the more sensitive the nearer they are to the input"
        findings.append(Finding(claim, convolutions == sorted(convolutions, reverse=True), numbers))
    return findings


def draw_dynamics(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for one in found:
        stem = one.line.name.split(",")[0].split(":")[-1].strip().lower().replace(" ", "-")
        record, title = one.records[0], f"{one.line.name}; {one.line.stream}"
        if max(epoch for _, epoch, _ in record.epoch_changes) > 1:
            pictures[f"{stem}-epochs"] = figures.dynamics(record, f"{title}: consecutive epochs")
        if record.task_changes:
            pictures[f"{stem}-tasks"] = figures.dynamics(record, f"{title}: consecutive tasks", "tasks")
    return pictures


def bn_dynamics(options: Options) -> list[Line]:
    """ResNet-18, plain SGD; the weights and biases of batch norm by stage."""
    stream = options.stream or (QUICK if options.quick else "seq-cifar10")
    given = {"network": "resnet18"} | ({"epochs": 2, "batch": 32, "lr": 0.03} if options.quick else {})
    return [Line("SGD", planned(stream, "sgd", given, options))]


def stages(record: Record) -> dict[str, list[float]]:
    """Change of the weights and biases of batch norm from task to task, by stage: bn1, block1 … block4.

    None of a run of one task.
    """
    found: dict[str, list[list[float]]] = {}
    for name, values in record.tensor_changes.items():
        if re.fullmatch(r"(.*\.)?(bn\d|shortcut\.1)\.(weight|bias)", name) and values:
            stage = name.split(".")[0]
            found.setdefault(stage, []).append(values)
    return {stage: [sum(v) / len(v) for v in zip(*rows, strict=True)] for stage, rows in found.items()}


def bn_findings(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for one in found:
        means = [{s: sum(v) / len(v) for s, v in stages(record).items()} for record in one.records]
        if not means[0]:
            continue
        mean = {stage: sum(m[stage] for m in means) / len(means) for stage in means[0]}
        numbers = ", ".join(f"{stage} {value:.2g}" for stage, value in mean.items())
        bottom, *deeper = mean.values()
        claim = f"{one.line.name}: the bottom batch norm changes the most"
        findings.append(Finding(claim, bottom > max(deeper), numbers))
        claim = f"{one.line.name}: deeper ones change less"
        findings.append(Finding(claim, deeper == sorted(deeper, reverse=True), numbers))
    return findings


def draw_bn(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for one in found:
        series = {
            stage: [(task + 2.0, value) for task, value in enumerate(values)]
            for stage, values in stages(one.records[0]).items()
        }
        if not series:
            continue
        title = f"weights and biases of batch norm, {one.line.stream}"
        pictures["bn"] = figures.curves(series, "task", "mean absolute change", title, log="y")
    return pictures


def filter_dynamics(options: Options) -> list[Line]:
    """VGG-11, plain SGD; every filter by itself."""
    stream = options.stream or (LARGE if options.quick else "seq-cifar10")
    given = {"network": "vgg11"} | ({"epochs": 2, "batch": 16, "lr": 0.01} if options.quick else {})
    return [Line("SGD", planned(stream, "sgd", given, Options(seeds=1, device=options.device)))]


def filter_findings(found: Sequence[Measured]) -> list[Finding]:
    filters = found[0].records[0].details["filters"]
    typical = {layer: median(changes["across"]) for layer, changes in filters.items()}
    shares = {
        layer: sum(change > 2 * typical[layer] for change in changes["across"]) / len(changes["across"])
        for layer, changes in filters.items()
    }
    jumps = {
        layer: sum(across > 2 * within for within, across in zip(changes["within"], changes["across"], strict=True))
        / len(changes["across"])
        for layer, changes in filters.items()
    }
    first, *_, last = typical.values()
    return [
        Finding(
            "filters of the bottom layer change more than those of the top one",
            first > last,
            "medians: " + ", ".join(f"{layer} {value:.2g}" for layer, value in typical.items()),
        ),
        Finding(
            "when tasks shift, a small part of the filters of each layer, under a quarter, changes more than twice as "
            "much as the median",
            0 < max(shares.values()) < 0.25,
            ", ".join(f"{layer} {share:.0%}" for layer, share in shares.items()),
        ),
        Finding(
            "when tasks shift, no more than a quarter of the filters of each layer changes more than twice as much as "
            "within a task",
            max(jumps.values()) <= 0.25,
            ", ".join(f"{layer} {share:.0%}" for layer, share in jumps.items()),
        ),
    ]


def draw_filters(found: Sequence[Measured]) -> dict[str, Figure]:
    filters = found[0].records[0].details["filters"]
    parts = {layer: (changes["within"], changes["across"]) for layer, changes in filters.items()}
    return {"filters": figures.histograms(parts, f"{found[0].line.stream}, VGG-11")}


ITEMS: Mapping[str, Item] = {
    "dynamics": Item(
        "Figure 1 (a–h)", "how far each group moves, over epochs and from task to task", dynamics,
        dynamics_findings, draw_dynamics, without=("rows",),
    ),
    "bn-dynamics": Item(
        "figure of batch norm", "weights and biases of batch norm by stage", bn_dynamics, bn_findings, draw_bn,
        without=("rows", "buffer"),
    ),
    "filter-dynamics": Item(
        "figure of filters", "how the changes of filters are distributed", filter_dynamics, filter_findings,
        draw_filters, filters=True, without=("rows", "buffer", "seeds"),
    ),
}  # fmt: skip
