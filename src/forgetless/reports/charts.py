"""Figures for papers and slides, by matplotlib: of any records, and those of ``reproduce``. Imports no torch.

Each function gives a ``matplotlib.figure.Figure``; ``save`` writes one as PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgetless.experiments.record import Record
from forgetless.reports.rows import Row, best, by_stream, front, profiled, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
Point = tuple[float, float]


def of_records(records: Sequence[Record], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """All figures there are of some records, in files of ``folder``; gives their names."""
    check_formats(formats)
    made: list[Path] = []
    streams = by_stream(records)
    for stream, members in streams.items():
        found = rows(members)
        prefix = "" if len(streams) == 1 else f"{stream.replace(':', '-')}-"
        pictures: dict[str, Figure] = {"cost": cost(found)}
        several = [row for row in found if len(row.anytime) > 1]
        if several:
            pictures["anytime"] = anytime(several)
        if row := profiled(found):
            pictures["profile"] = profile(row.sensitivity, row.label)
            pictures["dynamics"] = dynamics(row.records[0], row.label)
        (first, *_) = best(found)
        pictures["matrix"] = matrix(first.matrix, first.label)
        for name, picture in pictures.items():
            made += save(picture, folder, prefix + name, formats)
    return made


def check_formats(formats: Sequence[str]) -> None:
    """An error if there is no such format, or nothing to draw with."""
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"formats has {name!r}; it must be of {', '.join(FORMATS)}")
    _figure(1, 1)


def save(picture: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for kind in formats:
        file = folder / f"{name}.{kind}"
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)  # the same records, the same file
        picture.savefig(file, bbox_inches="tight", dpi=160, metadata=dates)
        made.append(file)
    return made


def anytime(found: Sequence[Row]) -> Figure:
    """Accuracy on the tasks so far, after each task."""
    picture, axes = _open()
    for row in found:
        axes.plot(range(1, len(row.anytime) + 1), row.anytime, marker="o", label=row.label)
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("accuracy on them (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _close(picture, axes)


def cost(found: Sequence[Row]) -> Figure:
    """Accuracy by FLOPs, and the line of those that no other beats in both."""
    picture, axes = _open()
    joined = front(found)
    axes.plot([row.tflops for row in joined], [row.accuracy for row in joined], "--", color="0.6", linewidth=1)
    for row in found:
        axes.errorbar(row.tflops, row.accuracy, row.spread or None, fmt="o", label=row.label)
    axes.set_xscale("log")
    axes.set_xlabel("TFLOPs of the whole run")
    axes.set_ylabel("accuracy (%)")
    return _close(picture, axes)


def profile(sensitivity: Mapping[str, float], label: str) -> Figure:
    """S_g of each group, with the thresholds of FPF and k-FPF."""
    picture, axes = _open()
    groups = list(sensitivity)[::-1]
    bars = axes.barh(groups, [sensitivity[group] for group in groups], color="#ea580c")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    if max(sensitivity.values(), default=0.0) > 5:  # batch norm's statistics; the others would not be seen
        axes.set_xscale("log")
        axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    for threshold, name in ((1.0, "FPF"), (0.3, "k-FPF")):
        axes.axvline(threshold, linestyle=":", color="0.4")
        axes.text(threshold, len(groups) - 0.4, name, ha="center", fontsize=8)
    axes.set_xlabel(f"sensitivity $S_g$ ({label})")
    return picture


def dynamics(record: Record, title: str, over: str = "epochs") -> Figure:
    """The change of each group: between consecutive epochs, or between the same epoch of consecutive tasks."""
    picture, axes = _open()
    changes = record.epoch_changes if over == "epochs" else record.task_changes
    for group in changes[0][2] if changes else ():
        axes.plot(range(1, len(changes) + 1), [row[2][group] for row in changes], marker=".", label=group)
    for index in range(1, len(changes)):
        if changes[index][0] != changes[index - 1][0]:
            axes.axvline(index + (1 if over == "epochs" else 0.5), linestyle=":", color="0.6", zorder=0)
    for index in record.boundaries if over == "epochs" else ():
        axes.plot(index + 1, 1.0, "v", color="#e11d48", transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_yscale("log")
    axes.set_xlabel("epoch; dotted: a task begins" if over == "epochs" else "epoch n of tasks t and t + 1")
    axes.set_ylabel("mean absolute change")
    axes.set_title(title, fontsize=10)
    return _close(picture, axes)


def matrix(values: Sequence[Sequence[float]], title: str) -> Figure:
    """Accuracy on each task after each task."""
    picture, axes = _open()
    shown = axes.imshow(values, vmin=0, vmax=100, cmap="Blues", aspect="equal" if len(values) > 1 else "auto")
    if len(values[0]) <= 10:
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color="white" if value > 60 else "black")
    axes.set_xticks(range(len(values[0])), [str(task + 1) for task in range(len(values[0]))])
    axes.set_yticks(range(len(values)), [str(task + 1) for task in range(len(values))])
    axes.set_xlabel("on task")
    axes.set_ylabel("after task")
    axes.set_title(title, fontsize=10)
    picture.colorbar(shown, ax=axes, label="accuracy (%)")
    return picture


def curves(
    series: Mapping[str, Sequence[Point]], x: str, y: str, title: str = "", *, log: str = "", star: Point | None = None
) -> Figure:
    """Lines through points, one for each name; ``log`` names the logarithmic axes, x with ticks at the points."""
    picture, axes = _open()
    for label, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    if star:
        axes.plot(*star, "*", color="#e11d48", markersize=16, zorder=5)
    places = sorted({place for points in series.values() for place, _ in points})
    if "x" in log:
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)
    elif all(place == int(place) for place in places):
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no task 2.5
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    return _close(picture, axes)


def paired(lines: Sequence[tuple[str, Point, Point]], title: str) -> Figure:
    """The paper's numbers beside ours, mean and deviation each, as bars."""
    picture = _figure(7, 0.8 + 0.34 * len(lines))
    axes: Any = picture.subplots()
    for offset, which, label, colour in ((0.2, 1, "paper", "0.75"), (-0.2, 2, "ours", "#3b82f6")):
        at = [len(lines) - i + offset for i in range(len(lines))]
        means, deviations = zip(*(line[which] for line in lines), strict=True)
        axes.barh(at, means, 0.38, xerr=deviations, label=label, color=colour, error_kw={"linewidth": 1})
    axes.set_yticks([len(lines) - i for i in range(len(lines))], [line[0] for line in lines])
    axes.set_xlabel("accuracy (%)")
    axes.set_title(title, fontsize=10)
    return _close(picture, axes)


def choices(parts: Mapping[str, Sequence[tuple[str, float, float, float]]], title: str) -> Figure:
    """What is finetuned, for each of several repairs: accuracy, FLOPs and parameters, the last two scaled to 1."""
    picture = _figure(8, 3.2 * len(parts))
    all_axes: Any = picture.subplots(len(parts), 1, squeeze=False)
    costs = max(line[2] for lines in parts.values() for line in lines)
    sizes = max(line[3] for lines in parts.values() for line in lines)
    for axes, (name, lines) in zip(all_axes[:, 0], parts.items(), strict=True):
        at = range(len(lines))
        axes.bar([i - 0.2 for i in at], [line[2] / costs for line in lines], 0.38, label="FLOPs", color="#93c5fd")
        axes.bar([i + 0.2 for i in at], [line[3] / sizes for line in lines], 0.38, label="parameters", color="#fdba74")
        axes.set_xticks(list(at), [line[0] for line in lines], rotation=30, ha="right", fontsize=8)
        axes.set_ylabel("share of the largest")
        right = axes.twinx()
        right.plot(at, [line[1] for line in lines], "k.-", label="accuracy")
        best = max(at, key=lambda i: lines[i][1])
        right.plot(best, lines[best][1], "*", color="#e11d48", markersize=15)
        right.set_ylabel("accuracy (%)")
        axes.set_title(f"{title}: {name}", fontsize=10)
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    picture.tight_layout()
    return picture


def histograms(parts: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str) -> Figure:
    """For each layer, how the changes of its filters are distributed: within a task, and across tasks."""
    columns = 4
    lines = -(-len(parts) // columns)
    picture = _figure(10, 2.3 * lines)
    all_axes: Any = picture.subplots(lines, columns, squeeze=False)
    for axes in all_axes.flat[len(parts) :]:
        axes.set_visible(False)
    for axes, (name, (within, across)) in zip(all_axes.flat, parts.items(), strict=False):
        top = max(*within, *across)
        bins = [top * i / 20 for i in range(21)]
        axes.hist(within, bins, alpha=0.6, label="within a task", color="#3b82f6")
        axes.hist(across, bins, alpha=0.6, label="across tasks", color="#ea580c")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    all_axes.flat[0].legend(frameon=False, fontsize=7)
    picture.suptitle(f"{title}: filters by their mean absolute change", fontsize=10)
    picture.tight_layout()
    return picture


def _figure(width: float, height: float) -> Figure:
    """An empty one, of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'forgetless[plot]'") from None
    return Figure(figsize=(width, height))


def _open() -> tuple[Figure, Any]:
    picture = _figure(6.4, 4)
    return picture, picture.subplots()


def _close(picture: Figure, axes: Any) -> Figure:
    """A frame open at the top and right, and the legend beside the picture."""
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return picture
