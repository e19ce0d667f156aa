"""The figures that vary one choice: the finetuned groups, how often and how long, the buffer, the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import check_name
from forgetless.experiments.presets import STREAM_DEFAULTS
from forgetless.paper.reproduce import (
    QUICK,
    Finding,
    Item,
    Line,
    Measured,
    Options,
    default_network,
    plan_runs,
    scenario,
    stream_steps,
)
from forgetless.reports import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASIS = ("bn.affine", "bn.stats", "fc", "conv1")
RESNET_GROUPS: Mapping[str, tuple[str, ...]] = {
    "BN": ("bn.affine", "bn.stats"),
    "FC": ("fc",),
    "CONV1": ("conv1",),
    "BN+FC": ("bn.affine", "bn.stats", "fc"),
    "Basis": BASIS,
    **{f"Basis+Block{i}": (*BASIS, f"block{i}") for i in (1, 2, 3, 4)},
    "Basis+Block1-3": (*BASIS, "block1", "block2", "block3"),
    "ALL": ("all",),
}
MLP_GROUPS: Mapping[str, tuple[str, ...]] = {
    "FC1": ("fc1",),
    "FC2": ("fc2",),
    "FC3": ("fc3",),
    "FC2+FC3": ("fc2", "fc3"),
    "FC1+FC3": ("fc1", "fc3"),
    "ALL": ("all",),
}


@dataclass(frozen=True)
class GroupsPoint:
    """A bar of ``parameters``: FPF or k-FPF with named groups."""

    repair: str
    groups: str


@dataclass(frozen=True)
class SchedulePoint:
    """A point of ``k-tau``: k finetunings, one every τ steps, of this many steps."""

    k: int
    every: int
    steps: int


@dataclass(frozen=True)
class SizePoint:
    """A point of ``buffer-epochs``: a method at one size of the buffer or number of epochs."""

    axis: str
    value: int
    method: str


def parameters(options: Options) -> list[Line]:
    """Plan FPF after ER, and k-FPF, with different groups, on a class-IL and a domain-IL stream."""
    default = [QUICK] if options.quick else ["seq-pathmnist", "seq-pacs"]
    lines = []
    for stream in [options.stream] if options.stream else default:
        check_name("stream", stream)
        for repair, method in (("FPF", "er"), ("k-FPF", "sgd")):
            for name, groups in (MLP_GROUPS if default_network(stream) == "mlp" else RESNET_GROUPS).items():
                given: dict[str, Any] = {"repair": repair.lower(), "groups": "all" if groups == ("all",) else groups}
                runs = plan_runs(stream, method, given | options.buffer_setting, options)
                lines.append(Line(f"{repair}, {name}", runs, point=GroupsPoint(repair, name)))
    return lines


def judge_parameters(measured: Sequence[Measured]) -> list[Finding]:
    """Judge whether few groups suffice, and which ones matter."""
    findings = []
    for stream in dict.fromkeys(entry.line.stream for entry in measured):
        for repair in ("FPF", "k-FPF"):
            points = [(entry.line.point, entry) for entry in measured if entry.line.stream == stream]
            by_groups = {point.groups: entry for point, entry in points if point.repair == repair}
            if len(by_groups) > 1:
                findings += _judge_groups(f"{stream}, {repair}", stream, repair, by_groups)
    return findings


def _judge_groups(where: str, stream: str, repair: str, by_groups: Mapping[str, Measured]) -> list[Finding]:
    """Judge one repair on one stream; claims whose groups were not measured are left out."""
    findings = []
    accuracy = {name: entry.mean for name, entry in by_groups.items()}

    def show(*names: str) -> str:
        return ", ".join(f"{name} {accuracy[name]:.1f}" for name in names)

    small = [name for name, entry in by_groups.items() if entry.records[0].share <= 0.25]
    if "ALL" in by_groups and small:
        best = max(small, key=accuracy.__getitem__)
        claim = f"{where}: finetuning at most a quarter of the parameters is at least as good as finetuning all"
        numbers = f"{show(best)} with {by_groups[best].records[0].share:.2%} of them, {show('ALL')}"
        findings.append(Finding(claim, accuracy[best] >= accuracy["ALL"], numbers))
    if repair == "FPF" and "BN+FC" in by_groups and len(by_groups) > 2:
        best = max(accuracy, key=accuracy.__getitem__)
        claim = f"{where}: batch norm and the last layer are the best groups to finetune"
        findings.append(Finding(claim, best == "BN+FC", show(*dict.fromkeys(("BN+FC", best)))))
    without, with_last = (("FC1", "FC2"), "FC3") if "FC3" in by_groups else (("BN", "CONV1"), "BN+FC")
    if repair == "k-FPF" and scenario(stream) == "class" and {*without, with_last} <= set(by_groups):
        gap = accuracy[with_last] - max(accuracy[name] for name in without)
        claim = f"{where}: leaving out the last layer costs 5 points or more"
        findings.append(Finding(claim, gap > 5, f"{gap:.1f} points; {show(*without, with_last)}"))
    if repair == "k-FPF" and {"Basis+Block3", "Basis+Block4"} <= set(by_groups):
        worse = accuracy["Basis+Block4"] < accuracy["Basis+Block3"]
        claim = f"{where}: block4 instead of block3 lowers the accuracy"
        findings.append(Finding(claim, worse, show("Basis+Block4", "Basis+Block3")))
    return findings


def draw_parameters(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw accuracy, FLOPs and parameters of each choice of groups, one figure per stream."""
    figures = {}
    for stream in dict.fromkeys(entry.line.stream for entry in measured):
        by_repair: dict[str, list[charts.Choice]] = {}
        for entry in [entry for entry in measured if entry.line.stream == stream]:
            size = entry.records[0].share * sum(entry.records[0].parameters.values())
            choice = charts.Choice(entry.line.point.groups, entry.mean, entry.tflops, size)
            by_repair.setdefault(entry.line.point.repair, []).append(choice)
        figures[stream] = charts.choices(by_repair, stream)
    return figures


def k_tau(options: Options) -> list[Line]:
    """Plan k-FPF with different numbers (k) and lengths of its finetunings."""
    stream = options.stream or (QUICK if options.quick else "seq-pathmnist")
    if stream not in STREAM_DEFAULTS:
        raise ValueError(f"stream is {stream!r}; for k-tau it must be one of {', '.join(STREAM_DEFAULTS)}")
    lines = []
    for k in (2, 5, 9, 41) if options.quick else (2, 5, 9, 21, 41, 121):
        # k − 1 times during training and once at the end. Fewer happen, since S_g is known from the second task on.
        every = stream_steps(stream) // k + 1
        for steps in (10, 30, 100) if options.quick else (20, 50, 100, 200, 300):
            given = {"repair": "k-fpf", "every": every, "steps": steps, **options.buffer_setting}
            runs = plan_runs(stream, "sgd", given, options)
            lines.append(Line(f"k {k} (τ {every}), {steps} steps", runs, point=SchedulePoint(k, every, steps)))
    return lines


def judge_k_tau(measured: Sequence[Measured]) -> list[Finding]:
    """Judge whether k = 9 suffices: fewer are worse, longer and more frequent finetuning adds little."""
    by_k: dict[int, dict[int, Measured]] = {}
    for entry in measured:
        by_k.setdefault(entry.line.point.k, {})[entry.line.point.steps] = entry
    few, many = min(by_k), max(by_k)
    middle = 9 if 9 in by_k else sorted(by_k)[len(by_k) // 2]
    lengths, common = sorted(by_k[middle]), by_k[middle].keys() & by_k[many].keys()
    if not few < middle < many or max(common, default=lengths[0]) == lengths[0]:
        return []
    longest = max(common)
    best = {k: max(entry.mean for entry in by_steps.values()) for k, by_steps in by_k.items()}
    shorter = lengths[lengths.index(longest) - 1]
    before, after = by_k[middle][shorter].mean, by_k[middle][longest].mean
    cost = by_k[many][longest].tflops / by_k[middle][longest].tflops
    return [
        Finding(
            f"k = {few} does not reach the accuracy of k = {middle} with any number of steps",
            best[few] < best[middle],
            ", ".join(f"k = {k}: {accuracy:.1f} %" for k, accuracy in best.items()),
        ),
        Finding(
            f"with k = {middle} the accuracy saturates: {longest} steps gain less than 2 points over {shorter}",
            after - before < 2,
            f"{before:.1f} → {after:.1f} %",
        ),
        Finding(
            f"k = {many} gains less than 3 points over k = {middle} at a much higher cost",
            best[many] - best[middle] < 3 and cost > 1.2,
            f"{best[middle]:.1f} → {best[many]:.1f} %, {cost:.1f} × the FLOPs",
        ),
    ]


def draw_k_tau(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw accuracy over FLOPs, a line per k; the star marks the cheapest point within a point of the best."""
    series: dict[str, list[charts.Point]] = {}
    for entry in measured:
        point = entry.line.point
        series.setdefault(f"k = {point.k} (τ = {point.every})", []).append((entry.tflops, entry.mean))
    best = max(entry.mean for entry in measured)
    star = min((entry.tflops, entry.mean) for entry in measured if entry.mean > best - 1)
    title = f"k-FPF-CE, {measured[0].line.stream}; more steps per finetuning along each line"
    return {"k-tau": charts.curves(series, "TFLOPs of the whole run", "accuracy (%)", title, star=star)}


def buffer_epochs(options: Options) -> list[Line]:
    """Plan ER and FPF + ER with different buffers, and with different numbers of epochs per task."""
    stream = options.stream or (QUICK if options.quick else "seq-pathmnist")
    check_name("stream", stream)
    head: tuple[str, ...] = ("fc3",) if default_network(stream) == "mlp" else ("bn.affine", "bn.stats", "fc")
    axes = {
        "buffer": (50, 100, 200, 400) if options.quick else (100, 200, 500, 1000, 2000),
        "epochs": (1, 5, 10) if options.quick else (1, 2, 5, 10, 20),
    }
    lines = []
    for axis, values in axes.items():
        for value in values:
            for name, given in (("ER", {}), ("FPF+ER", {"repair": "fpf", "groups": head})):
                runs = plan_runs(stream, "er", given | {axis: value}, options)
                lines.append(Line(f"{name}, {axis} {value}", runs, point=SizePoint(axis, value, name)))
    return lines


def judge_buffer_epochs(measured: Sequence[Measured]) -> list[Finding]:
    """Judge whether FPF always improves ER, and whether ER improves with the buffer."""
    accuracy = {entry.line.point: entry.mean for entry in measured}
    plain = {point: value for point, value in accuracy.items() if point.method == "ER"}
    repaired = {point: SizePoint(point.axis, point.value, "FPF+ER") for point in plain}
    gains = {
        f"{point.axis} {point.value}": accuracy[repaired[point]] - value
        for point, value in plain.items()
        if repaired[point] in accuracy
    }
    sizes = [value for point, value in plain.items() if point.axis == "buffer"]
    if not gains or len(sizes) < 2:
        return []
    return [
        Finding(
            "finetuning the last layer (and batch norm) improves ER in all scenarios",
            min(gains.values()) > 0,
            ", ".join(f"{name}: {gain:+.1f}" for name, gain in gains.items()),
        ),
        Finding(
            "ER improves with the size of the buffer",
            sizes == sorted(sizes),
            " → ".join(f"{size:.1f}" for size in sizes) + " %",
        ),
    ]


def draw_buffer_epochs(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Draw the accuracy over the size of the buffer and over the epochs."""
    figures = {}
    for axis, name in (("buffer", "examples in the buffer"), ("epochs", "epochs per task")):
        series: dict[str, list[charts.Point]] = {}
        for entry in [entry for entry in measured if entry.line.point.axis == axis]:
            series.setdefault(entry.line.point.method, []).append((entry.line.point.value, entry.mean))
        if series:
            figures[axis] = charts.curves(series, name, "accuracy (%)", measured[0].line.stream, log="x")
    return figures


ITEMS: Mapping[str, Item] = {
    "parameters": Item(
        "figures of the finetuned groups", "FPF and k-FPF with different groups, class-IL and domain-IL", parameters,
        judge_parameters, draw_parameters, unused_options=("rows",),
    ),
    "k-tau": Item(
        "figure (a) of k and τ", "k-FPF with different numbers and lengths of finetunings", k_tau, judge_k_tau,
        draw_k_tau, unused_options=("rows",),
    ),
    "buffer-epochs": Item(
        "figure (b) of buffers and epochs", "ER and FPF + ER with different buffers and epochs", buffer_epochs,
        judge_buffer_epochs, draw_buffer_epochs, unused_options=("rows", "buffer"),
    ),
}  # fmt: skip
