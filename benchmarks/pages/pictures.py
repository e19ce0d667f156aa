"""Draw the pictures of the pages from the committed records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any

import forgetless
from forgetless.experiments.record import Record
from forgetless.paper import dynamics
from forgetless.paper.reproduce import Measured
from forgetless.repair.settings import THRESHOLDS
from forgetless.reports.charts import GroupChanges, group_changes
from forgetless.reports.rows import table_rows
from pages import choice
from pages.labels import FONT_SIZE, Point, label_ends, label_points
from pages.names import row_name
from pages.results import panels
from pages.rows import COLUMNS, CostAndAccuracy, accuracies, benchmark_record, column_rows, costs_and_accuracies, tflops
from pages.studies import measured
from pages.style import BLUE, GREY, INK, ORANGE, TEAL, canvas, save

FAR_BELOW = 0.65  # a row below this share of the lowest repaired row is a triangle at the bottom edge
STEPS = {"sgd": "SGD", "er": "ER", "derpp": "DER++", "finetuning": "finetuning"}


def draw_all() -> None:
    """Draw every picture into docs/."""
    draw_example()
    draw_speed()
    draw_cost("seq-cifar10", 500, "accuracy-cost", joint=True)
    for stream, buffer in COLUMNS:
        draw_cost(stream, buffer, f"cost-{stream}-{buffer}")
    draw_dynamics()
    draw_profile("seq-cifar10")
    for stream in ("seq-pathmnist", "seq-pacs"):
        draw_parameters(stream)
    draw_k_tau()
    draw_buffer_epochs()
    draw_batch_norm()
    draw_filters()
    draw_choice()


def draw_example() -> None:
    """Draw the accuracy of the README's example on the old and the new data, until after the repair."""
    recorded = benchmark_record("picture.json")
    steps, every, runs = recorded["steps"], recorded["every"], recorded["runs"]
    figure, axes = canvas(3.9)
    places = [every * index for index in range(len(runs[0]["curve"]))]
    repaired = places[-1] + 300
    for index, (label, place) in enumerate({"digits": (620, 93), "negatives": (1480, 93)}.items()):
        shade = (GREY, "#b9c0cb")[index]
        curve = [mean(run["curve"][position][index] for run in runs) for position in range(len(places))]
        after = mean(run["repaired"][index] for run in runs)
        axes.plot(places, curve, color=shade, linewidth=2)
        axes.plot([places[-1], repaired], [curve[-1], after], color=BLUE, linewidth=2.4, marker="o", markersize=6)
        axes.text(*place, label, color=GREY, ha="center", fontsize=11)
    before, after = (
        mean(values) for values in zip(*((r["curve"][-1][0], r["repaired"][0]) for r in runs), strict=True)
    )
    axes.axvline(steps, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.text(steps / 2, 106, "training on digits", ha="center", fontsize=11)
    axes.text(1.5 * steps, 106, "then on negatives", ha="center", fontsize=11)
    axes.text((places[-1] + repaired) / 2, 106, "repair", color=BLUE, weight="bold", ha="center", fontsize=11)
    axes.text(1150, 12, "digits are forgotten", color=GREY, weight="bold", fontsize=11)
    axes.text(
        1215, 46,
        f"FPF repairs {100 * runs[0]['share']:.0f} %\nof the parameters\nfrom 100 images:\n"
        f"{before:.0f} % → {after:.0f} %, at {runs[0]['compute']:.1f} ×\nthe compute",
        va="center", color=BLUE, linespacing=1.4, fontsize=11,
    )  # fmt: skip
    axes.set(xlim=(0, repaired + 20), ylim=(-2, 102), ylabel="held-out accuracy, %", xlabel="training steps")
    axes.set_xticks([0, steps // 2, steps, steps + steps // 2, 2 * steps])
    save(figure, "picture")


def draw_speed() -> None:
    """Draw the milliseconds per step as bars: eager, captured, and captured in eight lanes."""
    recorded = benchmark_record("speed-h200.json")["rows"]
    rows = [row for row in recorded if (row["network"], row["size"]) == ("resnet18", 32)]
    cases = {"eager": (False, 1, GREY), "captured": (True, 1, "#5fb3ab"), "captured, eight lanes": (True, 8, TEAL)}
    figure, axes = canvas(3.2)
    for index, (label, (captured, lanes, colour)) in enumerate(cases.items()):
        widths = [
            next(r["milliseconds"] for r in rows if (r["way"], r["captured"], r["lanes"]) == (step, captured, lanes))
            for step in STEPS
        ]
        places = [-x - 0.27 * (index - 1) for x in range(len(STEPS))]
        bars = axes.barh(places, widths, 0.25, label=label, color=colour)
        axes.bar_label(bars, fmt="%.3g", fontsize=FONT_SIZE, padding=3)
    axes.set_yticks([-x for x in range(len(STEPS))], list(STEPS.values()))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds per run and step")
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, "speed")


def draw_cost(stream: str, buffer: int, name: str, *, joint: bool = False) -> None:
    """Draw accuracy by FLOPs; a line leads from a method to FPF after it, and a dashed line joins the Pareto front.

    Rows far below the others are triangles at the bottom edge, with their accuracies.
    """
    rows = column_rows(stream, buffer)
    points = costs_and_accuracies(rows)
    front = sorted(
        point
        for point in points.values()
        if not any(other.tflops <= point.tflops and other.accuracy > point.accuracy for other in points.values())
    )
    if joint:
        points["joint"] = CostAndAccuracy(tflops(rows["joint"]), mean(accuracies(rows["joint"])))
    lowest_repaired = min(point.accuracy for row, point in points.items() if "fpf" in row)
    near = {row: point for row, point in sorted(points.items()) if point.accuracy > FAR_BELOW * lowest_repaired}
    low, high = (limit(point.accuracy for point in near.values()) for limit in (min, max))
    bottom = low - (0.16 if len(near) < len(points) else 0.06) * (high - low)
    costs = [point.tflops for point in points.values()]
    margin = 0.12 * (max(costs) - min(costs))
    figure, axes = canvas(5.2 if joint else 4.8)
    axes.set_ylim(bottom, high + 0.06 * (high - low))
    axes.set_xlim(min(costs) - margin, max(costs) + 1.5 * margin)
    lines: list[tuple[Point, Point]] = []
    axes.plot(*zip(*front, strict=True), "--", color=INK, alpha=0.4, linewidth=0.8, zorder=0)
    for row, after in near.items():
        before = points.get(row.removeprefix("fpf+"))
        if row.startswith("fpf+") and before is not None:
            lines.append(((before.tflops, max(before.accuracy, bottom)), (after.tflops, after.accuracy)))
            axes.plot(*zip(*lines[-1], strict=True), color=BLUE, alpha=0.5, linewidth=1, zorder=1)
        axes.plot(*after, "o", color=colour(row), markersize=5)
    places = {row_name(row): (point.tflops, point.accuracy) for row, point in near.items()}
    below: dict[tuple[int, int], list[str]] = {}  # rows that share a place and an accuracy share a label
    for row, point in points.items():
        if row not in near:
            axes.plot(point.tflops, bottom, "v", color=colour(row), markersize=6, clip_on=False)
            below.setdefault((round(point.tflops / 100), round(point.accuracy)), []).append(row)
    for (_, accuracy), members in below.items():
        names = ", ".join(row_name(row) for row in sorted(members, reverse=True))
        places[f"{names}: {accuracy} %"] = (points[members[0]].tflops, bottom)
    axes.set_xlabel("TFLOPs of the whole run")
    axes.set_ylabel("accuracy (%)")
    for label, shade in (("method alone", GREY), ("with FPF", BLUE), ("k-FPF", ORANGE)):
        axes.plot([], [], "o", color=shade, label=label)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1), handletextpad=0.2, columnspacing=1.5)
    label_points(axes, places, lines)
    save(figure, name)


def colour(row: str) -> str:
    """Return the colour of a row."""
    return ORANGE if row.startswith("k-fpf") else BLUE if row.startswith("fpf+") else GREY


def draw_dynamics() -> None:
    """Draw the panels of the paper's Figure 1."""
    for panel in panels():
        first = min(panel.runs, key=lambda run: run.settings["seed"])
        if first.settings["epochs"] > 1:
            draw_changes(first, group_changes(first), f"dynamics-{panel.stem}", "epoch (dotted: a task begins)", 1)
        by_task = group_changes(first, "tasks")
        draw_changes(first, by_task, f"dynamics-{panel.stem}-tasks", "epoch n of tasks t and t + 1", 0.5)


def draw_changes(run: Record, changes: GroupChanges, name: str, x: str, shift: float) -> None:
    """Draw how far each group moves, coloured by the repair that chooses it."""
    scores = {group: score for group, score in run.sensitivity.items() if score is not None}
    figure, axes = canvas()
    for group, values in changes.series.items():
        axes.plot(range(1, len(values) + 1), values, ".-", color=group_colour(group, scores))
    for index in list(changes.starts)[1:]:
        axes.axvline(index + shift, linestyle=":", color=INK, alpha=0.5, linewidth=0.8, zorder=0)
    for index in changes.detected:
        axes.plot(index + 1, 1.0, "v", color=TEAL, transform=axes.get_xaxis_transform(), clip_on=False, markersize=6)
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel("mean absolute change")
    group_legend(axes, scores, shift_detected=bool(changes.detected))
    count = len(next(iter(changes.series.values())))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(1 - 0.03 * count, count + 0.16 * count)
    label_ends(axes, {group: (len(values), values[-1]) for group, values in changes.series.items()})
    save(figure, name)


def group_colour(group: str, scores: Mapping[str, float]) -> str:
    """Return blue for a group that FPF chooses, orange for one that only k-FPF chooses, and grey for the others."""
    if group in forgetless.select(scores, THRESHOLDS["FPF"]):
        return BLUE
    return ORANGE if group in forgetless.select(scores, THRESHOLDS["k-FPF"]) else GREY


def group_legend(axes: Any, scores: Mapping[str, float], *, shift_detected: bool = False) -> None:
    """Explain the colours of the groups."""
    used = {group_colour(group, scores) for group in scores}
    texts = {BLUE: "FPF and k-FPF", ORANGE: "only k-FPF", GREY: "neither"}
    for shade, text in texts.items():
        if shade in used:
            axes.plot([], [], "o", color=shade, label=text)
    if shift_detected:
        axes.plot([], [], "v", color=TEAL, label="shift detected")
    axes.legend(
        ncols=4, loc="lower left", bbox_to_anchor=(0, 1.02), title="repaired by", alignment="left",
        handletextpad=0.2, columnspacing=1.5, borderpad=0, title_fontsize=9,
    )  # fmt: skip


def draw_profile(stream: str) -> None:
    """Draw S_g of ER, a picture of docs/method.md."""
    (row,) = table_rows(column_rows(stream, 500)["fpf+er"])
    scores = row.sensitivity
    groups = list(scores)[::-1]
    figure, axes = canvas(3.4)
    bars = axes.barh(groups, [scores[group] for group in groups], 0.65, color=[group_colour(g, scores) for g in groups])
    axes.bar_label(bars, fmt="%.2f", fontsize=FONT_SIZE, padding=3)
    axes.set_xscale("log")
    axes.set_xlim(0.05, 90)
    axes.set_xticks([0.1, 0.3, 1, 10], ["0.1", "0.3", "1", "10"])
    axes.set_xticks([], minor=True)
    for threshold in THRESHOLDS.values():
        axes.axvline(threshold, linestyle=":", color=INK, linewidth=1)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("sensitivity S_g (dotted: the thresholds of k-FPF, 0.3, and FPF, 1)")
    group_legend(axes, scores)
    save(figure, f"profile-{stream}")


def draw_parameters(stream: str) -> None:
    """Draw the accuracy of FPF and k-FPF by the groups that they finetune."""
    lines = measured("parameters", stream)
    names = list(dict.fromkeys(line.line.point.groups for line in lines))
    shares = {line.line.point.groups: line.records[0].share for line in lines}
    figure, panels_of_repairs = canvas(3.6, 2, sharey=True)
    for axes, repair, shade in zip(panels_of_repairs, ("FPF", "k-FPF"), (BLUE, ORANGE), strict=True):
        means = {line.line.point.groups: line.mean for line in lines if line.line.point.repair == repair}
        places = {name: -index for index, name in enumerate(names)}
        axes.plot([means[name] for name in names], [places[name] for name in names], "o", color=shade, markersize=6)
        for name in names:
            axes.annotate(f"{means[name]:.1f}", (means[name], places[name]), (6, 0), textcoords="offset points",
                          va="center", fontsize=FONT_SIZE)  # fmt: skip
        axes.set_yticks(list(places.values()), [f"{name} ({percent(shares[name])})" for name in names])
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.25)
        axes.set_title("FPF after ER" if repair == "FPF" else "k-FPF-CE")
        axes.set_xlabel("accuracy (%)")
    save(figure, f"study-parameters-{stream}")


def percent(share: float) -> str:
    """Return a share in percent, with decimals if it is small."""
    return f"{100 * share:.2f} %" if share < 0.01 else f"{100 * share:.0f} %"


def draw_k_tau() -> None:
    """Draw the accuracy of k-FPF by the FLOPs of its finetunings, with a line per k."""
    by_k: dict[int, list[Measured]] = {}
    for line in measured("k-tau", "seq-pathmnist"):
        by_k.setdefault(line.line.point.k, []).append(line)
    figure, axes = canvas(4.2)
    ends, segments = {}, []
    for index, (k, lines) in enumerate(by_k.items()):
        points = [(mean(run.flops["finetune"] for run in line.records) / 1e12, line.mean) for line in lines]
        axes.plot(*zip(*points, strict=True), "o-", color=ORANGE, alpha=0.35 + 0.65 * index / (len(by_k) - 1))
        ends[f"k = {k}"] = points[-1]
        segments += list(pairwise(points))
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.6)
    axes.set_xlabel("TFLOPs of the finetunings")
    axes.set_ylabel("accuracy (%)")
    label_points(axes, ends, segments)
    save(figure, "study-k-tau-k-tau")


def draw_buffer_epochs() -> None:
    """Draw the accuracy of ER and of FPF after it, by the size of the buffer and by the epochs."""
    for axis, x in (("buffer", "images in the buffer"), ("epochs", "epochs per task")):
        figure, axes = canvas(3)
        ends = {}
        for method, name, shade in (("ER", "ER", GREY), ("FPF+ER", "FPF+ER", BLUE)):
            lines = [line for line in measured("buffer-epochs") if line.line.point[::2] == (axis, method)]
            points = [(line.line.point.value, line.mean) for line in lines]
            axes.plot(*zip(*points, strict=True), "o-", color=shade)
            ends[name] = points[-1]
        places = [line.line.point.value for line in lines]
        axes.set_xscale("log")
        axes.set_xticks(places, [str(place) for place in places])
        axes.set_xticks([], minor=True)
        axes.set_xlim(right=places[-1] * 1.5)
        axes.set_xlabel(x)
        axes.set_ylabel("accuracy (%)")
        label_ends(axes, ends)
        save(figure, f"study-buffer-epochs-{axis}")


def draw_batch_norm() -> None:
    """Draw the change of batch norm by stage from task to task."""
    stages = dynamics.bn_stages(measured("bn-dynamics")[0].records[0])
    figure, axes = canvas(3.4)
    ends = {}
    for stage, values in stages.items():
        tasks = range(2, len(values) + 2)
        axes.plot(tasks, values, "o-", color=TEAL)
        ends[stage] = (tasks[-1], values[-1])
    axes.set_yscale("log")
    axes.set_xticks(list(tasks))
    axes.set_xlim(right=tasks[-1] + 0.35)
    axes.set_xlabel("task")
    axes.set_ylabel("mean absolute change")
    label_ends(axes, ends)
    save(figure, "study-bn-dynamics-bn")


def draw_filters() -> None:
    """Draw the median and the spread of the changes of the filters of each layer, within a task and at a shift."""
    layers = measured("filter-dynamics")[0].records[0].details["filters"]
    figure, axes = canvas(3.8)
    for kind, label, shade, offset in (("within", "within a task", GREY, 0.16), ("across", "at a shift", TEAL, -0.16)):
        for index, changes in enumerate(layers.values()):
            low, high = (percentile(changes[kind], share) for share in (0.1, 0.9))
            axes.plot([low, high], [offset - index] * 2, color=shade, linewidth=2, alpha=0.5)
        medians = [median(changes[kind]) for changes in layers.values()]
        axes.plot(medians, [offset - index for index in range(len(layers))], "o", color=shade, label=label)
    axes.set_yticks([-index for index in range(len(layers))], list(layers))
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set_xlabel("mean absolute change of a filter (dot: median; line: 10th to 90th percentile)")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, "study-filter-dynamics-filters")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[int(share * (len(values) - 1))]


def draw_choice() -> None:
    """Draw the rank correlation of each score with what a repair recovers: a dot per pair, and their mean."""
    runs = benchmark_record("oracle.json")["runs"]
    names = {"repeat": "the oracle, repeated"} | {score: choice.SCORES[score].name for score in choice.ordered(runs)}
    figure, axes = canvas(0.26 * len(names) + 0.7)
    for place, score in enumerate(names):
        correlations = list(choice.by_pair(runs, score).values())
        shade = {choice.DEFAULT: BLUE, "repeat": GREY}.get(score, TEAL)
        axes.plot(correlations, [-place] * len(correlations), "o", color=shade, alpha=0.5, markeredgewidth=0)
        axes.plot([mean(correlations)], [-place], "o", color=shade, markersize=8)
        axes.annotate(f"{mean(correlations):.2f}", (1.06, -place), va="center", annotation_clip=False)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks([-place for place in range(len(names))], list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(-1.02, 1.02), ylim=(0.4 - len(names), 0.6), xlabel="rank correlation with the recovered loss")
    save(figure, "choice")
