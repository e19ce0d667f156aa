"""Compute the values of docs/speed.md: steps and whole runs on a GPU, on a CPU and compared with Avalanche."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any, NamedTuple

from pages import fused
from pages.names import row_name
from pages.rows import benchmark_record
from pages.template import markdown_table, spread


class Goals(NamedTuple):
    """Milliseconds per step that were aimed for on the H200, with one lane and with eight."""

    one_lane: float
    eight_lanes: float | None


class Compiled(NamedTuple):
    """Seconds that compiling takes, and the number of steps after which it pays."""

    seconds: float
    steps: float


GOALS = {
    "sgd": Goals(1.7, 0.8),
    "er": Goals(2.2, 1.3),
    "der": Goals(2.8, None),
    "derpp": Goals(3.5, 2.3),
    "finetuning": Goals(1.6, 0.7),
}
NETWORKS = {"mlp": "MLP", "resnet18": "ResNet-18"}
LANES = (1, 2, 4, 8, 16)
STEPS = ("sgd", "er", "derpp", "finetuning")


def values() -> dict[str, Any]:
    """Return the values of the template."""
    gpu = benchmark_record("speed-h200.json")
    return {
        "gpu": gpu,
        "goals": GOALS,
        **gpu_steps(gpu),
        "parts": parts_of_a_step(),
        "fused": fused.values(),
        "kernels": deleted_kernels(Steps(gpu)),
        **whole_runs(Steps(gpu)),
        **on_a_cpu(),
        **compiled(),
        **on_arm(),
        **versus_avalanche(),
        "sharing": (sharing := benchmark_record("sharing.json")),
        "sharing_best": {kind: min(seconds) for kind, seconds in sharing["seconds"].items()},
    }


def deleted_kernels(steps: Steps) -> str:
    """Return the table of what each kernel saved of a step, and of what all deletions cost together."""
    rows = benchmark_record("ablation-h200.json")["rows"]
    saves = {(row["without"], row["way"]): row.get("saves_median") for row in rows}
    ways = ("sgd", "er", "finetuning")
    kernels = ("cross_entropy", "augment", "descent", "shortcut", "gather", "norm")
    table = [[name, *(f"{100 * saves[name, way]:.1f} %" for way in ways)] for name in kernels]
    before = Steps(benchmark_record("speed-h200-with-kernels.json"))
    for lanes in (1, 8):
        saved = [f"{-100 * (steps.milliseconds(w, lanes) / before.milliseconds(w, lanes) - 1):.1f} %" for w in ways]
        table.append([f"0.20 compared with 0.19, {lanes} lane{'s' * (lanes > 1)}", *saved])
    return markdown_table(["saved of a step", *map(row_name, ways)], table)


class Steps:
    """Look up the milliseconds and the memory of a step on the GPU."""

    def __init__(self, outcome: Mapping[str, Any]) -> None:
        names = ("network", "size", "way", "precision", "captured", "lanes")
        self.rows = {tuple(row[name] for name in names): row for row in outcome["rows"]}

    def milliseconds(
        self, step: str, lanes: int, network: str = "resnet18", size: int = 32, precision: str = "bf16",
        captured: bool = True,
    ) -> float:  # fmt: skip
        """Return the milliseconds per run and step."""
        value: float = self.rows[network, size, step, precision, captured, lanes]["milliseconds"]
        return value

    def cell(self, step: str, lanes: int, *arguments: Any, **options: Any) -> str:
        """Return the milliseconds as a cell of a table, or a dash if they were not measured."""
        try:
            return f"{self.milliseconds(step, lanes, *arguments, **options):.3g}"
        except KeyError:
            return "–"

    def megabytes(self, step: str, network: str = "resnet18", size: int = 32) -> int:
        """Return the memory per lane."""
        return int(self.rows[network, size, step, "bf16", True, 1]["megabytes_per_lane"])


def gpu_steps(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of single steps on the GPU."""
    steps = Steps(outcome)
    rows = []
    for step in ("sgd", "er", "der", "derpp", "agem", "icarl", "finetuning"):
        one_lane, eight_lanes = GOALS.get(step, (None, None))
        rows.append([
            row_name(step),
            steps.cell(step, 1, captured=False),
            steps.cell(step, 1) + (f" ({one_lane})" if one_lane else ""),
            steps.cell(step, 8) + (f" ({eight_lanes})" if eight_lanes else ""),
            str(steps.megabytes(step)),
        ])  # fmt: skip
    header = ["", "eager, one lane", "captured, one lane", "captured, eight lanes", "MB per lane"]
    cases = {
        "VGG-11, 32×32": ("vgg11", 32),
        "ResNet-18, 64×64": ("resnet18", 64),
        "ResNet-18 of ImageNet, 224×224": ("resnet18_imagenet", 224),
    }
    others = [
        [row_name(step), *(f"{steps.cell(step, 1, *case)} / {steps.cell(step, 8, *case)} "
                           f"({steps.megabytes(step, *case)})" for case in cases.values())]
        for step in STEPS
    ]  # fmt: skip
    by_lanes = ["milliseconds per run and step", *(f"{steps.milliseconds('sgd', lanes):.3g}" for lanes in LANES)]
    missed = {
        f"{step} {lanes}": steps.milliseconds(step, lanes) / goal - 1
        for step, goals in GOALS.items()
        for lanes, goal in zip((1, 8), goals, strict=True)
        if goal and steps.milliseconds(step, lanes) > goal
    }
    return {
        "steps": markdown_table(header, rows),
        "missed_goals": missed,
        "sixteen_lanes": 1 - steps.milliseconds("sgd", 16) / steps.milliseconds("sgd", 8),
        "speedup": {
            "sgd": steps.milliseconds("sgd", 1, captured=False) / steps.milliseconds("sgd", 1),
            "lanes": steps.milliseconds("sgd", 1, captured=False) / steps.milliseconds("sgd", 8),
        },
        "by_lanes": markdown_table(["lanes", *map(str, LANES)], [by_lanes]),
        "other_networks": markdown_table(["", *cases], others),
        "mlp": {
            "eager": steps.milliseconds("sgd", 1, "mlp", 28, "fp32", captured=False),
            "captured": steps.milliseconds("sgd", 1, "mlp", 28, "tf32"),
            "lanes": steps.milliseconds("sgd", 8, "mlp", 28, "tf32"),
        },
    }


def parts_of_a_step() -> dict[str, Any]:
    """Return what the parts of a step take with eight lanes, measured by leaving them out."""
    outcome = benchmark_record("parts-h200.json")
    milliseconds = {(row["way"], tuple(row["without"])): row["milliseconds"] for row in outcome["rows"]}
    both = ("batch norm", "update")
    header = ["", "whole step", "without batch norm", "without the update", "without both"]
    rows = [
        [name, *(f"{milliseconds[step, left_out]:.3g}" for left_out in ((), ("batch norm",), ("update",), both))]
        for step, name in (("sgd", "SGD"), ("er", "ER"))
    ]
    bare = milliseconds["sgd", both] / milliseconds["er", both]
    return {"command": outcome["command"], "table": markdown_table(header, rows), "bare_ratio": bare}


def whole_runs(steps: Steps) -> dict[str, Any]:
    """Return wall-clock times and accuracies of whole runs, and bf16 compared with tf32."""
    parts, precise = (benchmark_record(f"{name}-h200.json")["parts"] for name in ("comparison", "precision"))
    rows = []
    for part in parts.values():
        by_label: dict[str, list[float]] = {}
        for run in part["runs"]:
            by_label.setdefault(run["label"], []).append(run["accuracy"])
        accuracies = ", ".join(f"{row_name(label)} {spread(each)}" for label, each in by_label.items())
        rows.append([str(len(part["runs"])), f"{part['seconds']:.0f}", accuracies])
    seconds = {name: parts[f"pack {name}"]["seconds"] for name in ("k-fpf-ce", "er", "derpp")}

    def seconds_at_goal(step: str) -> float:
        """Return what a pack would take if its steps took exactly their goal."""
        slower = (GOALS[step].eight_lanes or 0) - steps.milliseconds(step, 8)
        count: int = sum(run["steps"] for run in parts[f"pack {step}"]["runs"])
        return float(seconds[step]) + slower * count / 1000

    others = ("er", "derpp")
    return {
        "runs": markdown_table(["runs", "seconds", "accuracy"], rows),
        "run_commands": list(dict.fromkeys(part["command"] for part in parts.values())),
        "twelve_seconds": parts["twelve"]["seconds"],
        "run_ratio": {name: seconds["k-fpf-ce"] / seconds[name] for name in others},
        "step_ratio": {name: steps.milliseconds("sgd", 8) / steps.milliseconds(name, 8) for name in others},
        "ratio_at_goal": {name: seconds["k-fpf-ce"] / seconds_at_goal(name) for name in others},
        "tf32": precise["tf32, 5 epochs"],
        "precisions": precisions(precise),
        "run_steps": parts["pack er"]["runs"][0]["steps"],
    }


def precisions(parts: Mapping[str, Any]) -> str:
    """Return the accuracies with bf16 and with tf32, and their difference."""
    rows = []
    for label in ("k-fpf-ce", "er"):
        tf32 = {run["seed"]: run["accuracy"] for run in parts["tf32, 5 epochs"]["runs"] if run["label"] == label}
        bf16 = [run["accuracy"] for run in parts[f"pack {label}"]["runs"] if run["seed"] in tf32]
        exact = list(tf32.values())
        error = ((stdev(bf16) ** 2 + stdev(exact) ** 2) / len(exact)) ** 0.5
        difference = f"{mean(bf16) - mean(exact):+.2f}"
        rows.append([row_name(label), spread(bf16, 2), spread(exact, 2), difference, f"{error:.2f}"])
    return markdown_table(["", "bf16", "tf32", "difference", "standard error"], rows)


def on_a_cpu() -> dict[str, Any]:
    """Return milliseconds per step on a CPU."""
    outcome = benchmark_record("speed-cpu.json")
    rows = [
        [NETWORKS[row["network"]], str(row["batch"]), row_name(row["way"]), str(row["threads"]), row["precision"],
         f"{row['milliseconds']:.3g}"]
        for row in outcome["rows"]
    ]  # fmt: skip
    names = ("network", "batch", "way", "threads", "precision")
    return {
        "cpu": outcome,
        "cpu_steps": markdown_table(["network", "batch", "step", "threads", "precision", "ms"], rows),
        "cpu_ms": {tuple(row[name] for name in names): row["milliseconds"] for row in outcome["rows"]},
    }


def compiled() -> dict[str, Any]:
    """Return what torch.compile does to a step, on a CPU and on a GPU."""
    cpu, gpu = (benchmark_record(f"speed-compiled{suffix}.json") for suffix in ("", "-h200"))
    on_cpu = {(row["network"], row["batch"], row["way"], row["compile"]): row for row in cpu["rows"]}
    on_gpu = {(row["way"], row["lanes"], row.get("compile", False)): row for row in gpu["rows"]}

    def shown(row: Mapping[str, Any]) -> str:
        return f"{row['milliseconds']:.0f}" if row["milliseconds"] > 100 else f"{row['milliseconds']:.3g}"

    cpu_rows = [
        [
            f"{NETWORKS[network]}, batch {batch}, {row_name(step)}",
            shown(on_cpu[network, batch, step, False]),
            shown(row),
        ]
        for (network, batch, step, is_compiled), row in on_cpu.items()
        if is_compiled
    ]
    gpu_rows = [
        [f"{name}, {'one lane' if lanes == 1 else 'eight lanes'}",
         *(f"{on_gpu[step, lanes, is_compiled]['milliseconds']:.3g}" for is_compiled in (False, True))]
        for lanes in (1, 8)
        for step, name in (("sgd", "SGD"), ("er", "ER"))
    ]  # fmt: skip
    header = ["milliseconds per step", "eager", "compiled"]
    return {
        "compiled_cpu": cpu,
        "compiled_cpu_steps": markdown_table(header, cpu_rows),
        "cpu_ratio": {
            (network, batch): row["milliseconds"] / on_cpu[network, batch, step, False]["milliseconds"]
            for (network, batch, step, is_compiled), row in on_cpu.items()
            if is_compiled
        },
        "resnet": pays(on_cpu["resnet18", 32, "sgd", False], on_cpu["resnet18", 32, "sgd", True]),
        "compiled_gpu": gpu,
        "compiled_gpu_steps": markdown_table(["milliseconds per step", "captured", "captured and compiled"], gpu_rows),
        "er_alone": pays(on_gpu["er", 1, False], on_gpu["er", 1, True]),
        "lane_gain": max(
            1 - on_gpu[step, 8, True]["milliseconds"] / on_gpu[step, 8, False]["milliseconds"] for step in ("sgd", "er")
        ),
    }


def pays(plain: Mapping[str, Any], by_torch: Mapping[str, Any]) -> Compiled:
    """Return what compiling costs and when it pays."""
    seconds = by_torch["seconds_before"] - plain["seconds_before"]
    return Compiled(seconds, 1000 * seconds / (plain["milliseconds"] - by_torch["milliseconds"]))


def on_arm() -> dict[str, Any]:
    """Return the steps of an MLP on Arm, with and without oneDNN."""
    outcome = benchmark_record("speed-arm.json")
    milliseconds = {(row["batch"], row.get("onednn", False)): row["milliseconds"] for row in outcome["rows"]}
    return {"arm": outcome, "arm_ms": milliseconds}


def versus_avalanche() -> dict[str, Any]:
    """Return a step of ER with forgetless, a DataLoader loop and Avalanche."""
    outcomes = [
        benchmark_record(f"versus-{name}.json") for name in ("10", "128", "128-two-threads", "10-arm", "128-arm")
    ]
    rows = []
    for outcome in outcomes:
        best, ratio = outcome["milliseconds_per_step"], outcome["times_slower_than_forgetless"]
        rows.append([
            outcome["device"], str(outcome["batch"]), str(outcome["threads"]), f"{best['forgetless']:.2f}",
            *(f"{best[other]:.2f} ({ratio[other]:.1f} ×)" for other in ("loader", "avalanche")),
            f"{best['products']:.2f}",
        ])  # fmt: skip
    header = ["", "batch", "threads", "forgetless", "plain DataLoader loop", "Avalanche's Replay", "matrix products"]
    large = outcomes[1]["milliseconds_per_step"]
    return {
        "versus": outcomes[0],
        "versus_steps": markdown_table(header, rows),
        "versus_repeats": [len(outcomes[index]["all"]["forgetless"]) for index in (0, -1)],
        "versus_ratio": {
            outcome["batch"]: outcome["times_slower_than_forgetless"]["avalanche"] for outcome in outcomes[:2]
        },
        "left_for_the_rest": large["avalanche"] / 8 - large["products"],
    }
