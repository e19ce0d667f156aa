"""Compute the values of docs/results.md: the paper's main table, the MLP, Rotated MNIST and Figure 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from forgetless.experiments.jobs import Planned
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings
from forgetless.paper import dynamics, published
from forgetless.paper.reproduce import Line, Measured, Options
from forgetless.paper.studies import ITEMS
from pages import field
from pages.names import STREAM_NAMES, joined, row_name, stream_and_buffer
from pages.rows import (
    COLUMNS,
    MASKED,
    REPAIRABLE,
    STREAMS,
    CostAndAccuracy,
    accuracies,
    accuracies_before_finetuning,
    accuracies_without_crops,
    better_points,
    chosen_groups,
    column_rows,
    confirmed_rows,
    costs_and_accuracies,
    describe,
    describe_settings,
    measured_lines,
    rows_by_label,
    rows_from_studies,
    searched_rows,
    standard_error,
    tflops,
    tflops_before_finetuning,
)
from pages.template import markdown_table, spread, table_and_settings

LENDERS = {"seq-organamnist": "Seq-CIFAR-10", "seq-pathmnist": "Seq-CIFAR-10", "seq-pacs": "Seq-TinyImageNet"}
OVERVIEW = ("sgd", "er", "derpp", "fpf+derpp", "k-fpf-ce", "k-fpf-kd", MASKED)
MASKED_AS_OPTION = "0.5.0"  # the version in which masked was an option of SGD


def values() -> dict[str, Any]:
    """Return the values of the template."""
    records = rows_by_label("seq-mnist")
    mlp = {row: records[row] for row in published.find("mlp-vgg", "seq-mnist", buffer=500)}
    runs = [run for row in mlp.values() for run in row]
    return {
        **overview(),
        **field.values(),
        "mlp_device": runs[0].device,
        "mlp_torch": runs[0].versions["torch"],
        "mlp_runs": len(runs),
        "mlp_minutes": minutes(runs),
        "mlp_groups": {row: chosen_groups(mlp[row]) for row in mlp},
        "mlp": mlp_table(mlp),
        "mlp_gaps": mlp_gaps(mlp),
        "rotated": rotated_table(),
        "rotated_k_fpf": rotated_k_fpf_table(),
        "streams": {stream: [column(stream, buffer) for buffer in (500, 200)] for stream in STREAMS},
        "anytime": [anytime_table(stream) for stream in ("seq-pathmnist", "seq-pacs")],
        "panels": [panel(each) for each in panels()],
    }


def overview() -> dict[str, Any]:
    """Return the accuracies of a few rows of every column, and how k-FPF compares with the other rows."""
    columns = {column: points_with_joint(*column) for column in COLUMNS}
    continual = {column: {row: p for row, p in points.items() if row != "joint"} for column, points in columns.items()}
    with_masked = [points for points in continual.values() if MASKED in points]
    best = [points[MASKED].accuracy == max(point.accuracy for point in points.values()) for points in with_masked]
    pairs = [
        (points[row.removeprefix("fpf+")], point)
        for points in columns.values()
        for row, point in points.items()
        if row.startswith("fpf+")
    ]
    return {
        "overview": {buffer: overview_table(columns, buffer) for buffer in (500, 200)},
        "seeds": seeds_sentence(),
        "cifar": columns["seq-cifar10", 500],
        "masked": MASKED,
        "cropped": sorted({(s, row) for s, b in COLUMNS for row in accuracies_without_crops(s, b) if row in OVERVIEW}),
        "masked_best": sum(best),
        "masked_columns": len(best),
        "fpf_pairs": len(pairs),
        "fpf_better": sum(after.accuracy > before.accuracy for before, after in pairs),
        "fpf_cost": max(after.tflops / before.tflops - 1 for before, after in pairs),
    }


def points_with_joint(stream: str, buffer: int) -> dict[str, CostAndAccuracy]:
    """Return cost and accuracy of every row of a column, joint training included."""
    rows = column_rows(stream, buffer)
    joint = CostAndAccuracy(tflops(rows["joint"]), mean(accuracies(rows["joint"])))
    return {**costs_and_accuracies(rows), "joint": joint}


def overview_table(columns: Mapping[tuple[str, int], Mapping[str, CostAndAccuracy]], buffer: int) -> str:
    """Return the accuracies of a few rows on every stream, and their cost relative to SGD."""
    lines = []
    for row in (*OVERVIEW, "joint"):
        points = {stream: columns[stream, buffer][row] for stream in STREAMS if row in columns[stream, buffer]}
        cells = [f"{points[stream].accuracy:.1f}" if stream in points else "–" for stream in STREAMS]
        ratios = [point.tflops / columns[stream, buffer]["sgd"].tflops for stream, point in points.items()]
        low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
        lines.append([row_name(row), *cells, f"{low} ×" if low == high else f"{low}–{high} ×"])
    paper = []
    for stream in STREAMS:
        targets = published.find("table1", stream, buffer=buffer).items()
        paper.append(f"{max(target.mean for label, target in targets if label != 'joint'):.1f}")
    lines.insert(-1, ["best of the paper", *paper, "–"])
    names = [STREAM_NAMES[stream].removeprefix("Seq-") for stream in STREAMS]
    return markdown_table([f"{buffer} images", *names, "cost"], lines)


def seeds_sentence() -> str:
    """Return the number of seeds of the streams, and the rows that have another number."""
    usual: dict[int, list[str]] = {}
    exceptions = []
    for stream in STREAMS:
        counts: dict[tuple[str, int], int] = {}
        for buffer in (500, 200):
            rows = column_rows(stream, buffer)
            runs = {row: len(rows.get(row) or rows.get(f"fpf+{row}", [])) for row in OVERVIEW}
            counts |= {(row, buffer): count for row, count in runs.items() if count}
        most = max(counts.values(), key=list(counts.values()).count)
        usual.setdefault(most, []).append(STREAM_NAMES[stream])
        for row, n in {(row, n): None for (row, _), n in counts.items() if n != most}:
            buffers = [buffer for buffer in (500, 200) if (row, buffer) in counts]
            fewer = [buffer for buffer in buffers if counts[row, buffer] == n]
            where = [STREAM_NAMES[stream]] if fewer == buffers else [stream_and_buffer(stream, b) for b in fewer]
            exceptions.append(f"{n} for {row_name(row)} on {joined(where)}")
    sentence = " and ".join(f"{count} seeds on {joined(streams)}" for count, streams in usual.items())
    return f"{sentence} (but {joined(exceptions)})" if exceptions else sentence


def minutes(runs: Sequence[Record]) -> float:
    """Return the minutes that some runs took in total."""
    return sum(run.seconds["total"] for run in runs) / 60


def mlp_table(mlp: Mapping[str, list[Record]]) -> str:
    """Return the MLP column."""
    rows = []
    for label, target in published.find("mlp-vgg", "seq-mnist", buffer=500).items():
        runs = mlp[label]
        gflops = f"{1000 * tflops(runs):.0f}"
        difference = f"{mean(accuracies(runs)) - target.mean:+.2f}"
        groups = chosen_groups(runs) or "–"
        rows.append([row_name(label), paper_cell(target), spread(accuracies(runs), 2), difference, gflops, groups,
                     describe_settings(runs)])  # fmt: skip
    return table_and_settings(["", "paper", "ours", "difference", "GFLOPs", "finetuned groups", "settings"], rows, 5)


def mlp_gaps(mlp: Mapping[str, list[Record]]) -> dict[str, float]:
    """Return our accuracy minus the paper's for the rows of the MLP column."""
    paper = published.find("mlp-vgg", "seq-mnist", buffer=500)
    return {label: mean(accuracies(mlp[label])) - target.mean for label, target in paper.items()}


def rotated_table() -> str:
    """Return Rotated MNIST compared with the accuracies that the DER authors published."""
    rows = []
    for label, target in published.find("der-authors", "rot-mnist", buffer=500).items():
        runs = rows_by_label("rot-mnist")[label]
        difference = f"{mean(accuracies(runs)) - target.mean:+.2f}"
        rows.append(
            [row_name(label), f"{target.mean:.2f}", spread(accuracies(runs), 2), difference, describe_settings(runs)]
        )
    return table_and_settings(["", "DER authors", "ours", "difference", "settings"], rows, 4)


def rotated_k_fpf_table() -> str:
    """Return k-FPF on Rotated MNIST, a column of the paper's table of many epochs."""
    rows = []
    for label, target in published.find("many-epochs", "rot-mnist", buffer=500).items():
        runs = rows_by_label("rot-mnist")[label]
        difference = f"{mean(accuracies(runs)) - target.mean:+.2f}"
        rows.append([row_name(label), paper_cell(target), spread(accuracies(runs), 2), str(len(runs)), difference,
                     f"{tflops(runs):.2f}", describe_settings(runs)])  # fmt: skip
    return table_and_settings(["", "paper", "ours", "seeds", "difference", "TFLOPs", "settings"], rows, 6)


def column(stream: str, buffer: int) -> dict[str, Any]:
    """Return the values of one column of the main table."""
    rows = column_rows(stream, buffer)
    runs = [run for row in rows.values() for run in row]
    masked = rows.get(MASKED, [])
    searched, elsewhere = searched_rows(stream, buffer), rows_from_studies(stream, buffer)
    return {
        "stream": stream,
        "buffer": buffer,
        "device": runs[0].device,
        "torch": runs[0].versions["torch"],
        "lender": LENDERS.get(stream),
        "confirmed": confirmed_rows(stream, buffer),
        "separate": [row for row in rows if row in REPAIRABLE],
        "unsearched": [
            row for row, each in searched.items() if "fpf" in row and each["grid"][0]["validation_accuracy"] is None
        ],
        "elsewhere": [row.removeprefix("fpf+") for row in elsewhere],
        "better": {row: (describe(each.point), *each[1:]) for row, each in better_points(stream, buffer).items()},
        "without_crops": accuracies_without_crops(stream, buffer),
        "minutes": minutes(runs),
        "masked": len(masked),
        "masked_as_option": sum(run.versions["forgetless"] == MASKED_AS_OPTION for run in masked),
        "first": (stream, buffer) == COLUMNS[0],
        "table": column_table(rows, published.find("table1", stream, buffer=buffer), elsewhere),
    }


def column_table(
    rows: Mapping[str, list[Record]],
    paper: Mapping[str, published.Target],
    elsewhere: Mapping[str, list[Record]] | None = None,
) -> str:
    """Return the paper's rows that have records; a method without runs is taken from FPF's runs after it."""
    header = ["", "paper", "ours", "seeds", "difference", "in s.e.", "TFLOPs", "finetuned groups", "settings"]
    lines = []
    for label, target in paper.items():
        repaired = rows.get(f"fpf+{label}") or (elsewhere or {}).get(f"fpf+{label}")
        if label in rows:
            lines.append(row_cells(label, target, rows[label]))
            if label == "k-fpf-kd":
                others = (row for row in sorted(rows) if row.startswith("k-fpf") and row not in paper)
                lines += [row_cells(row, None, rows[row]) for row in others]
        elif repaired:
            cells = comparison_cells(target, accuracies_before_finetuning(repaired))
            settings = describe_settings(repaired).partition(", ft_lr")[0]
            lines.append([row_name(label), *cells, f"{tflops_before_finetuning(repaired):.0f}", "–", settings])
    return table_and_settings(header, lines, 7)


def row_cells(label: str, target: published.Target | None, runs: Sequence[Record]) -> list[str]:
    """Return the cells of a row."""
    cells = comparison_cells(target, accuracies(runs))
    return [row_name(label), *cells, f"{tflops(runs):.0f}", chosen_groups(runs) or "–", describe_settings(runs)]


def comparison_cells(target: published.Target | None, values: Sequence[float]) -> list[str]:
    """Return the paper's accuracy, ours, the seeds, the difference, and the difference in standard errors."""
    several = len(values) > 1
    ours = f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if several else "")
    if target is None:
        return ["–", ours, str(len(values)), "–", "–"]
    gap = mean(values) - target.mean
    errors = f"{gap / standard_error(target, values):+.1f}" if several else "–"
    return [paper_cell(target), ours, str(len(values)), f"{gap:+.2f}", errors]


def paper_cell(target: published.Target) -> str:
    """Return the paper's accuracy with its standard deviation."""
    return f"{target.mean:.2f} ± {target.std:.2f}"


def anytime_table(stream: str) -> str:
    """Return the accuracy on the tasks so far after each task, where the paper has it."""
    paper: dict[str, list[float]] = {}
    for target in published.targets():
        if target.table == "anytime" and target.stream == stream:
            paper.setdefault(target.label, []).append(target.mean)
    rows = column_rows(stream, 500) | rows_from_studies(stream, 500)
    finetuned_after_each_task = column_rows(stream, 500, anytime=True)
    lines = []
    for label, published_means in paper.items():
        is_k_fpf = label.startswith("k-fpf")
        if runs := finetuned_after_each_task.get(label) if is_k_fpf else rows.get(f"fpf+{label}"):
            ours = [mean(run.anytime[task] for run in runs) for task in range(len(published_means))]
            if not is_k_fpf:
                ours[-1] = mean(accuracies_before_finetuning(runs))
            pairs = zip(published_means, ours, strict=True)
            lines.append([row_name(label), *(f"{theirs:.1f} / {measured:.1f}" for theirs, measured in pairs)])
    return markdown_table([f"{STREAM_NAMES[stream]}, 500 images", *(f"task {task}" for task in range(1, 5))], lines)


class Panel(NamedTuple):
    """A panel of the paper's Figure 1: its name, the stem of its pictures, and its runs."""

    name: str
    stem: str
    runs: list[Record]


def panels() -> list[Panel]:
    """Return the panels of Figure 1 that have records."""
    lines = [line for line in ITEMS["dynamics"].lines(Options(device="cuda")) if line.name.startswith("g: ")]
    (with_replay,) = measured_lines(lines)
    return [
        Panel(
            "VGG-11 on Seq-CIFAR-10 (panels a, b)", "seq-cifar10-vgg11", column_rows("seq-cifar10-vgg11", 500)["sgd"]
        ),
        Panel("ResNet-18 on Seq-CIFAR-10 (panels c, d)", "seq-cifar10", column_rows("seq-cifar10", 500)["sgd"]),
        Panel("MLP on Seq-MNIST (panel e)", "seq-mnist", rows_by_label("seq-mnist")["sgd"]),
        Panel("ResNet-18 on Seq-OrganAMNIST (f)", "seq-organamnist", column_rows("seq-organamnist", 500)["sgd"]),
        Panel("ResNet-18 on Seq-CIFAR-10, ER with a buffer of 2,000 (g)", "seq-cifar10-er", list(with_replay.records)),
        Panel("ResNet-18 on Seq-PACS (h)", "seq-pacs", column_rows("seq-pacs", 500)["sgd"]),
    ]


def panel(each: Panel) -> dict[str, Any]:
    """Return what the records say about the paper's claims on a panel, and its pictures."""
    planned = tuple(Planned(Settings.from_dict(run.settings), {}) for run in each.runs)
    findings = dynamics.judge_group_dynamics([Measured(Line(each.name, planned), tuple(each.runs))])
    several_epochs = each.runs[0].settings["epochs"] > 1
    scores = {group: mean(run.sensitivity[group] or 0.0 for run in each.runs) for group in each.runs[0].sensitivity}
    statistics = scores.pop("bn.stats", None)
    most = sorted(scores, key=lambda group: -scores[group])[:2]
    return {
        "convolutional": "conv1" in scores,
        "ends_lead": set(most) == {next(iter(scores)), list(scores)[-1]},  # the first and the last layer
        "statistics_lead": statistics is None or statistics > max(scores.values()),
        "name": each.name,
        "seeds": len(each.runs),
        "findings": [str(finding).replace(f"{each.name}: ", "") for finding in findings],
        "pictures": [each.stem, f"{each.stem}-tasks"] if several_epochs else [f"{each.stem}-tasks"],
    }
