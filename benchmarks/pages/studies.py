"""Compute the values of docs/studies.md: the paper's other tables and figures, compared with ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from forgetless.experiments.record import Record
from forgetless.paper import dynamics, published
from forgetless.paper.reproduce import Measured, Options
from forgetless.paper.studies import ITEMS
from forgetless.paper.tables import chosen_and_all
from pages.names import row_name
from pages.results import column_table
from pages.rows import accuracies, benchmark_record, column_rows, measured_lines, searched_rows
from pages.template import markdown_table

SECTIONS = {
    "many_epochs": ("Does k-FPF beat DER++ after 50 epochs per task?", "50-epochs-per-task"),
    "all_groups": ("Are the chosen groups as good as all groups?", "the-chosen-groups-compared-with-all-groups"),
    "frozen": ("What does a frozen group cost?", "a-group-frozen-after-the-first-task"),
    "parameters": ("Which groups should be finetuned?", "which-groups-to-finetune"),
    "k_tau": ("How often and how long?", "how-often-and-how-long"),
    "buffer_epochs": ("Does FPF help with every buffer and every number of epochs?", "the-buffer-and-the-epochs"),
    "stages": ("Which batch norm changes?", "batch-norm-and-single-filters"),
    "filters": ("Which filters change?", "batch-norm-and-single-filters"),
}  # the studies that test claims of the paper
VGG = "seq-cifar10-vgg11"
SEARCHED_RATE = ("sgd", "er", "derpp")  # the methods whose finetuning rate was searched


class Count(NamedTuple):
    """How many of some cases hold."""

    holding: int
    total: int


def values() -> dict[str, Any]:
    """Return the values of the template."""
    main = column_rows("seq-pathmnist", 500)
    deviations = [stdev(accuracies(runs)) for row, runs in main.items() if row not in ("sgd", "joint")]
    all_groups = accuracy_lines(measured("fpf-all"))
    searched, unsearched = better_pairs(all_groups)
    studies: dict[str, Any] = {
        "many_epochs": many_epochs(),
        "all_groups": [chosen_compared_with_all(stream) for stream in ("seq-pathmnist", "seq-pacs")],
        "frozen": frozen_groups(),
        "parameters": [named_groups(stream) for stream in ("seq-pathmnist", "seq-pacs")],
        "k_tau": study("k-tau", lines := measured("k-tau"), k_tau_table(lines)),
        "buffer_epochs": study("buffer-epochs", lines := measured("buffer-epochs"), buffer_epochs_table(lines)),
        "stages": batch_norm_stages(),
        "filters": single_filters(),
    }
    tested = [each for found in studies.values() for each in (found if isinstance(found, list) else [found])]
    return {
        "deviations": deviations,
        "rates": benchmark_record("many-epochs.json")["rows"],
        "vgg": vgg(),
        "searched_pairs": searched,
        "unsearched_pairs": unsearched,
        **studies,
        "claims": Count(sum(each["holding"] for each in tested), sum(len(each["findings"]) for each in tested)),
        "summary": summary_table(studies),
    }


def summary_table(studies: Mapping[str, Any]) -> str:
    """Return how many claims of the paper hold in each study."""
    rows = []
    for key, (title, anchor) in SECTIONS.items():
        parts = studies[key] if isinstance(studies[key], list) else [studies[key]]
        count = Count(sum(part["holding"] for part in parts), sum(len(part["findings"]) for part in parts))
        seeds = ", ".join(dict.fromkeys(str(part["seeds"]) for part in parts))
        rows.append([f"{count.holding} of {count.total}", seeds, f"[{title}](#{anchor})"])
    return markdown_table(["claims that hold", "seeds", "question"], rows)


def measured(item: str, stream: str | None = None) -> list[Measured]:
    """Return the recorded lines of what ``forgetless reproduce`` plans for an item."""
    return measured_lines(ITEMS[item].lines(Options(stream=stream, seeds=5, device="cuda")))


def study(item: str, lines: Sequence[Measured], table: str, stream: str | None = None) -> dict[str, Any]:
    """Return the command of an item, where its numbers come from, its table and what they say about the paper."""
    runs: dict[str, Record] = {run.id: run for line in lines for run in line.records}
    seeds = max(len(line.records) for line in lines)
    minutes = sum(run.seconds["total"] for run in runs.values()) / 60
    command = f"forgetless reproduce {item}" + (f" --stream {stream}" if stream else "")
    if "seeds" not in ITEMS[item].unused_options:
        command += f" --seeds {seeds}"
    findings = list(ITEMS[item].judge(lines))
    return {
        "stream": stream,
        "command": f"{command} --device cuda",
        "torch": next(iter(runs.values())).versions["torch"],
        "time": f"{minutes:.0f} minutes" if minutes > 2 else f"{60 * minutes:.0f} seconds",
        "seeds": seeds,
        "table": table,
        "holding": sum(finding.holds for finding in findings),
        "findings": findings,
    }


def many_epochs() -> dict[str, Any]:
    """Return the table of 50 epochs per task."""
    lines = accuracy_lines(measured("many-epochs", "seq-cifar10"))
    return study("many-epochs", lines, comparison_table(lines), "seq-cifar10")


def vgg() -> dict[str, Any]:
    """Return the VGG-11 column and what diverged."""
    rows, searched = column_rows(VGG, 500), searched_rows(VGG, 500)
    grid = [entry for row in searched.values() if len(row["grid"]) > 1 for entry in row["grid"]]
    diverged = [entry["point"]["lr"] for entry in grid if entry["validation_accuracy"] is None]
    fast_diverged = sum(lr > 0.01 for lr in diverged)
    fast = sum(entry["point"]["lr"] > 0.01 for entry in grid)
    seeds = len(rows["sgd"])
    paper = published.find("mlp-vgg", "seq-cifar10", buffer=500)
    gaps = [mean(accuracies(rows[row])) - target.mean for row, target in paper.items() if row in rows]
    return {
        "points": len(grid),
        "seeds": seeds,
        "torch": rows["sgd"][0].versions["torch"],
        "fast": Count(fast_diverged, fast),
        "slow": Count(len(diverged) - fast_diverged, len(grid) - fast),
        "lost": {row: seeds - len(rows.get(row, [])) for row in searched if len(rows.get(row, [])) < seeds},
        "reasons": {row: each["why"] for row, each in searched.items() if "why" in each},
        "below": Count(sum(gap < 0 for gap in gaps), len(gaps)),
        "table": column_table(rows, paper),
    }


def chosen_compared_with_all(stream: str) -> dict[str, Any]:
    """Return FPF's chosen groups compared with all groups on a stream."""
    lines = [line for line in measured("fpf-all") if line.line.stream == stream]
    costs = {line.line.name: line for line in lines if line.line.metric == "finetune_tflops"}

    def cost(line: Measured) -> str:
        measured_cost = costs[line.line.name]
        target = measured_cost.line.target
        return f"{target.mean if target else 0:.1f} / {measured_cost.mean:.1f}"

    rows = accuracy_lines(lines)
    table = comparison_table(rows, "finetuning", cost)
    return study("fpf-all", rows, table, stream)


def better_pairs(lines: Sequence[Measured]) -> tuple[Count, Count]:
    """Count the pairs of chosen and all groups that agree with the sentence on them.

    Returns:
        Where the learning rate was searched, in how many pairs all groups are at least as good; and where it was not,
        in how many pairs the chosen groups are better.
    """
    searched: list[bool] = []
    unsearched: list[bool] = []
    for chosen, whole in chosen_and_all(lines):
        if chosen.records[0].settings["method"] in SEARCHED_RATE:
            searched.append(whole.mean >= chosen.mean)
        else:
            unsearched.append(chosen.mean > whole.mean)
    return Count(sum(searched), len(searched)), Count(sum(unsearched), len(unsearched))


def frozen_groups() -> dict[str, Any]:
    """Return the accuracy after each task with one group frozen."""
    lines = measured("freeze")
    groups: dict[str, list[Measured]] = {}
    for line in lines:
        groups.setdefault(line.line.point, []).append(line)
    rows = []
    for group, members in groups.items():
        cells = [f"{line.line.target.mean if line.line.target else 0:.1f} / {line.mean:.1f}" for line in members]
        rows.append([group or "none", str(len(members[0].records)), *cells])
    return study("freeze", lines, markdown_table(["frozen", "seeds", *(f"task {task}" for task in range(1, 6))], rows))


def named_groups(stream: str) -> dict[str, Any]:
    """Return FPF and k-FPF with named groups on a stream."""
    lines = [line for line in measured("parameters") if line.line.stream == stream]
    rows = []
    for name in dict.fromkeys(line.line.point.groups for line in lines):
        kinds = {line.line.point.repair: line for line in lines if line.line.point.groups == name}
        cells = [cell for kind in ("FPF", "k-FPF") for cell in accuracy_and_cost(kinds.get(kind))]
        seeds = ", ".join(dict.fromkeys(str(len(line.records)) for line in kinds.values()))
        rows.append([name, f"{next(iter(kinds.values())).records[0].share:.2%}", *cells, seeds])
    header = ["groups", "share", "FPF", "TFLOPs", "k-FPF", "TFLOPs", "seeds"]
    return study("parameters", lines, markdown_table(header, rows), stream)


def batch_norm_stages() -> dict[str, Any]:
    """Return the changes of batch norm by stage."""
    lines = measured("bn-dynamics")
    by_run = [dynamics.bn_stages(run) for run in lines[0].records]
    rows = [
        [stage, *(f"{mean(run[stage][task] for run in by_run):.2g}" for task in range(len(changes)))]
        for stage, changes in by_run[0].items()
    ]
    header = ["", *(f"to task {task + 2}" for task in range(len(rows[0]) - 1))]
    return study("bn-dynamics", lines, markdown_table(header, rows))


def single_filters() -> dict[str, Any]:
    """Return the changes of the filters of VGG-11."""
    lines = measured("filter-dynamics")
    rows = []
    for layer, changes in lines[0].records[0].details["filters"].items():
        within, across = (sorted(changes[kind]) for kind in ("within", "across"))
        numbers = (median(within), median(across), across[len(across) * 9 // 10], across[-1])
        rows.append([layer, str(len(across)), *(f"{number:.2g}" for number in numbers)])
    header = ["layer", "filters", "median in a task", "median at a shift", "90th percentile", "largest"]
    return study("filter-dynamics", lines, markdown_table(header, rows))


def accuracy_lines(lines: Sequence[Measured]) -> list[Measured]:
    """Return the lines that measure accuracy."""
    return [line for line in lines if line.line.metric == "accuracy"]


def accuracy_and_cost(line: Measured | None) -> tuple[str, str]:
    """Return the accuracy and the TFLOPs of the finetuning as cells."""
    if line is None:
        return "–", "–"
    return line.shown, f"{mean(run.flops.get('finetune', 0) for run in line.records) / 1e12:.1f}"


def k_tau_table(lines: Sequence[Measured]) -> str:
    """Return accuracy and TFLOPs by the number of finetunings and by their steps."""
    steps = sorted({line.line.point.steps for line in lines})
    rows = []
    for k in dict.fromkeys(line.line.point.k for line in lines):
        by_steps = {line.line.point.steps: line for line in lines if line.line.point.k == k}
        first = by_steps[steps[0]]
        cells = [f"{by_steps[count].shown} ({by_steps[count].tflops:.0f})" for count in steps]
        rows.append([str(k), str(first.line.point.every), str(len(first.records[0].finetunings)), *cells])
    return markdown_table(["k", "τ", "finetunings", *(f"{count} steps" for count in steps)], rows)


def buffer_epochs_table(lines: Sequence[Measured]) -> str:
    """Return the accuracies of ER and FPF+ER by the size of the buffer and by the epochs."""
    rows = []
    for axis, value in dict.fromkeys(line.line.point[:2] for line in lines):
        plain, repaired = (line for line in lines if line.line.point[:2] == (axis, value))
        rows.append([f"{axis} {value}", plain.shown, repaired.shown, f"{plain.tflops:.0f}", f"{repaired.tflops:.0f}"])
    return markdown_table(["", "ER", "FPF+ER", "TFLOPs, ER", "TFLOPs, FPF+ER"], rows)


def comparison_table(
    lines: Sequence[Measured], extra: str = "", cell: Callable[[Measured], str] = lambda line: ""
) -> str:
    """Return lines with the paper's numbers and ours."""
    rows = []
    for line in lines:
        target = line.line.target
        assert target is not None
        errors = "–" if line.standard_errors is None else f"{line.standard_errors:+.1f}"
        name, paper = row_name(line.line.name.partition(", ")[0]), f"{target.mean:.2f} ± {target.std:.2f}"
        cells = [
            name,
            paper,
            line.shown,
            str(len(line.records)),
            f"{line.difference:+.2f}",
            errors,
            f"{line.tflops:.0f}",
        ]
        rows.append([*cells, *([cell(line)] if extra else [])])
    header = ["", "paper", "ours", "seeds", "difference", "in s.e.", "TFLOPs", *([extra] if extra else [])]
    return markdown_table(header, rows)
