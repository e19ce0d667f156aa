"""Charts for papers and slides, drawn with matplotlib, and the data that they share with the page. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forgetless.config.extras import load_extra
from forgetless.experiments.record import Record
from forgetless.repair.settings import THRESHOLDS
from forgetless.reports.glossary import term
from forgetless.reports.rows import Row, best_rows, by_stream, family, grouped, pareto_front, profile_row, table_rows
from forgetless.training.metrics import MeanStd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
RED = "#e11d48"
COLOURS = {  # of each family (see ``rows.family``), in three shades; page.html has the same colours
    "alone": ("#6b7280", "#374151", "#9ca3af"),
    "fpf": ("#2563eb", "#1e3a8a", "#60a5fa"),
    "k-fpf": ("#ea580c", "#9a3412", "#fb923c"),
}
Point = tuple[float, float]
Thresholds = Mapping[float, Sequence[str]]  # of S_g, the lowest first, and the repairs that finetune the groups above


class GroupChanges(NamedTuple):
    """How far each group moved, one value per epoch, and where tasks begin."""

    series: dict[str, list[float]]
    starts: dict[int, int]  # the index of the first epoch of each task, and the number of the task
    detected: list[int]  # the indices at which the detector reported a shift


def thresholds(rows: Sequence[Row] = ()) -> Thresholds:
    """Return the thresholds of the rows that choose groups by S_g; the defaults if no row chooses groups at all."""
    chosen = [row.settings for row in rows if row.settings["repair"] != "none" and row.settings["groups"] == "auto"]
    scheduled = [settings for settings in chosen if settings["threshold"] is not None]  # a budget has no threshold
    if chosen and not scheduled:
        return {}
    used = sorted({(settings["threshold"], term(settings["repair"])) for settings in scheduled})
    used = used or sorted((threshold, repair) for repair, threshold in THRESHOLDS.items())
    return {threshold: [repair for value, repair in used if value == threshold] for threshold, _ in used}


def group_family(score: float | None, limits: Thresholds) -> str:
    """Return the family (see ``rows.family``) of the repair with the highest threshold that a group's S_g exceeds."""
    above = [repairs[0].lower() for threshold, repairs in limits.items() if score is not None and score > threshold]
    return above[-1] if above else "alone"


def numbered(families: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the family of each label and its number within the family, which sets its shade and marker."""
    members = grouped(families, families.__getitem__)
    return {label: (name, number) for name, labels in members.items() for number, label in enumerate(labels)}


def learning_curves(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the accuracy on the tasks so far after each task, by label, for rows with several tasks."""
    return {row.label: row.anytime for row in rows if len(row.anytime) > 1}


def group_changes(record: Record, over: str = "epochs") -> GroupChanges:
    """Return the changes between consecutive epochs, or between the same epoch of consecutive tasks (``tasks``)."""
    changes = record.epoch_changes if over == "epochs" else record.task_changes
    tasks = [task for task, _, _ in changes]
    groups = changes[0][2] if changes else ()
    return GroupChanges(
        {group: [by_group[group] for _, _, by_group in changes] for group in groups},
        {index: task for index, task in enumerate(tasks) if index == 0 or task != tasks[index - 1]},
        list(record.boundaries) if over == "epochs" else [],
    )


def draw_records(records: Sequence[Record], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Save every chart that the records allow and return the paths; with several streams, each name begins with one."""
    check_formats(formats)
    files: list[Path] = []
    streams = by_stream(records)
    for stream, members in streams.items():
        rows = table_rows(members)
        best = best_rows(rows)[0]
        prefix = "" if len(streams) == 1 else f"{stream.replace(':', '-')}-"
        drawn = {"cost": cost(rows), "matrix": matrix(best.matrix, best.label)}
        if learning_curves(rows):
            drawn["anytime"] = anytime(rows)
        if row := profile_row(rows):
            drawn["profile"] = profile(row.sensitivity, row.label, thresholds(rows))
            drawn["dynamics"] = dynamics(row.records[0], row.label, limits=thresholds(rows))
        for name, figure in drawn.items():
            files += save(figure, folder, prefix + name, formats)
    return files


def check_formats(formats: Sequence[str]) -> None:
    """Raise an error if a format is unknown or matplotlib is not installed."""
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"formats has {name!r}; expected {', '.join(FORMATS)}")
    _open()


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure to ``folder/name.format`` in each format and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{kind}" for kind in formats]
    for file in files:
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)  # reproducible files
        figure.savefig(file, bbox_inches="tight", dpi=160, metadata=undated)
    return files


def anytime(rows: Sequence[Row]) -> Figure:
    """Draw the accuracy on the tasks so far after each task."""
    series = {label: list(enumerate(values, 1)) for label, values in learning_curves(rows).items()}
    return curves(series, "tasks learned", "accuracy on them (%)")


def cost(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over FLOPs, and a line through the rows that no other row beats in both."""
    figure, (axes,) = _open()
    front = pareto_front(rows)
    axes.plot([row.tflops for row in front], [row.accuracy for row in front], "--", color="0.6", linewidth=1)
    looks = _looks({row.label: family(row.label) for row in rows})
    for row in rows:
        axes.errorbar(row.tflops, row.accuracy, row.std or None, linestyle="", label=row.label, **looks[row.label])
    axes.set_xscale("log")
    return _close(figure, axes, "TFLOPs of the whole run", "accuracy (%)")


def profile(sensitivity: Mapping[str, float], label: str, limits: Thresholds) -> Figure:
    """Draw S_g of each group, with the thresholds of the repairs."""
    figure, (axes,) = _open()
    groups = list(sensitivity)[::-1]
    colours = [COLOURS[group_family(sensitivity[group], limits)][0] for group in groups]
    bars = axes.barh(groups, [sensitivity[group] for group in groups], color=colours)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    if max(sensitivity.values(), default=0.0) > 5:  # batch-norm statistics would dwarf the other groups
        axes.set_xscale("log")
        axes.margins(x=0.15)
    for threshold, repairs in limits.items():
        label_of_line = f"{', '.join(repairs)}: {threshold:g}"
        axes.axvline(threshold, linestyle=":", color=COLOURS[repairs[0].lower()][1], label=label_of_line)
    return _close(figure, axes, f"sensitivity $S_g$ ({label})")


def dynamics(record: Record, title: str, over: str = "epochs", limits: Thresholds | None = None) -> Figure:
    """Draw the change of each group: between consecutive epochs, or from task to task (see ``group_changes``)."""
    figure, (axes,) = _open()
    changes = group_changes(record, over)
    scores, limits = record.sensitivity, thresholds() if limits is None else limits
    looks = _looks({group: group_family(scores.get(group), limits) for group in changes.series})
    for group, values in changes.series.items():
        axes.plot(range(1, len(values) + 1), values, markersize=3, label=group, **looks[group])
    for index in list(changes.starts)[1:]:
        axes.axvline(index + (1 if over == "epochs" else 0.5), linestyle=":", color="0.6", zorder=0)
    for index in changes.detected:
        axes.plot(index + 1, 1.0, "v", color=RED, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_yscale("log")
    x = "epoch (dotted: a task begins)" if over == "epochs" else "epoch n of tasks t and t + 1"
    return _close(figure, axes, x, "mean absolute change", title)


def matrix(values: Sequence[Sequence[float]], title: str) -> Figure:
    """Draw the accuracy on each task after each task."""
    figure, (axes,) = _open()
    shades = {"alone": "Greys", "fpf": "Blues", "k-fpf": "Oranges"}[family(title)]
    image = axes.imshow(values, vmin=0, vmax=100, cmap=shades, aspect="equal" if len(values) > 1 else "auto")
    if len(values[0]) <= 10:
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color="white" if value > 60 else "black")
    axes.set_xticks(range(len(values[0])), [str(task + 1) for task in range(len(values[0]))])
    axes.set_yticks(range(len(values)), [str(task + 1) for task in range(len(values))])
    figure.colorbar(image, ax=axes, label="accuracy (%)")
    return _close(figure, axes, "on task", "after task", title)


def curves(
    series: Mapping[str, Sequence[Point]], x: str, y: str, title: str = "", *, log: str = "", star: Point | None = None
) -> Figure:
    """Draw a line through the points of each name. ``log`` names the logarithmic axes; ``star`` marks a point.

    A name that says no repair ("k = 9") has the colour of the repair that the title begins with.
    """
    figure, (axes,) = _open()
    looks = _looks({label: family(title) if family(label) == "alone" else family(label) for label in series})
    for label, points in series.items():
        axes.plot(*zip(*points, strict=True), label=label, **looks[label])
    if star:
        axes.plot(*star, "*", color=RED, markersize=16, zorder=5)
    places = sorted({place for points in series.values() for place, _ in points})
    if "x" in log:
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)
    elif all(place == int(place) for place in places):
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no task 2.5
    if "y" in log:
        axes.set_yscale("log")
    return _close(figure, axes, x, y, title)


def paired(labels: Sequence[str], paper: Sequence[MeanStd], ours: Sequence[MeanStd], title: str) -> Figure:
    """Draw the paper's numbers (hollow) and ours as pairs of bars."""
    figure, (axes,) = _open(7, 0.8 + 0.34 * len(labels))
    places = [len(labels) - i for i in range(len(labels))]
    colours = [COLOURS[family(label)][0] for label in labels]
    for values, offset, name, fill in ((paper, 0.2, "paper", "white"), (ours, -0.2, "ours", colours)):
        heights, widths, errors = zip(*((p + offset, *v) for p, v in zip(places, values, strict=True)), strict=True)
        bars = {"color": fill, "edgecolor": colours, "error_kw": {"linewidth": 1}}
        axes.barh(heights, widths, 0.38, xerr=errors, label=name, **bars)
    axes.set_yticks(places, labels)
    return _close(figure, axes, "accuracy (%)", title=title)


def choices(by_repair: Mapping[str, Sequence[Row]], title: str) -> Figure:
    """Draw accuracy, FLOPs and parameters of each choice of groups, the last two relative to the largest."""
    figure, panels = _open(8, 3.2 * len(by_repair), len(by_repair))
    largest_cost = max(row.tflops for rows in by_repair.values() for row in rows)
    largest_share = max(row.share for rows in by_repair.values() for row in rows)
    for axes, (repair, rows) in zip(panels, by_repair.items(), strict=True):
        places = range(len(rows))
        costs, shares = [row.tflops / largest_cost for row in rows], [row.share / largest_share for row in rows]
        axes.bar([i - 0.2 for i in places], costs, 0.38, label="FLOPs", color="0.55")
        axes.bar([i + 0.2 for i in places], shares, 0.38, label="parameters", color="0.8")
        axes.set_xticks(list(places), [row.label for row in rows], rotation=30, ha="right", fontsize=8)
        axes.set_ylabel("share of the largest")
        right = axes.twinx()
        right.plot(places, [row.accuracy for row in rows], ".-", color=COLOURS[family(repair)][0], label="accuracy")
        best = max(places, key=lambda i: rows[i].accuracy)
        right.plot(best, rows[best].accuracy, "*", color=RED, markersize=15)
        right.set_ylabel("accuracy (%)")
        axes.set_title(f"{title}: {repair}", fontsize=10)
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    figure.tight_layout()
    return figure


def histograms(layers: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> Figure:
    """Draw for each layer how the changes of its filters are distributed, ``within`` a task and ``across`` tasks."""
    lines = -(-len(layers) // 4)
    figure, panels = _open(10, 2.3 * lines, lines, 4)
    for axes in panels[len(layers) :]:
        axes.set_visible(False)
    for axes, (name, changes) in zip(panels, layers.items(), strict=False):
        top = max(*changes["within"], *changes["across"])
        bins = [top * i / 20 for i in range(21)]
        axes.hist(changes["within"], bins, alpha=0.6, label="within a task", color="0.7")
        axes.hist(changes["across"], bins, alpha=0.6, label="across tasks", color="0.2")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    panels[0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"{title}: filters by their mean absolute change", fontsize=10)
    figure.tight_layout()
    return figure


def _looks(families: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the colour and marker of each label from its family."""
    return {
        label: {"color": COLOURS[name][number % 3], "marker": "osD^"[number % 4]}
        for label, (name, number) in numbered(families).items()
    }


def _open(width: float = 6.4, height: float = 4, lines: int = 1, columns: int = 1) -> tuple[Figure, list[Any]]:
    """Return a figure of this size in inches and the axes of its panels."""
    figure = load_extra("matplotlib.figure", "plot", "figures need matplotlib").Figure(figsize=(width, height))
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _close(figure: Figure, axes: Any, x: str, y: str = "", title: str = "") -> Figure:
    """Label the axes, open the frame at the top and right, and put the legend next to the chart."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
