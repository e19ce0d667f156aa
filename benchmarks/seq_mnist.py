"""Measure the paper's MLP column: every row on Seq-MNIST with buffer 500, with settings chosen on validation.

    python benchmarks/seq_mnist.py search --work FOLDER   # every point of the grids on validation, two seeds
    python benchmarks/seq_mnist.py final --work FOLDER    # the best point of each row on all images, five seeds

FPF's learning rate and threshold are searched with the two best points of its method and with five seeds, because they
matter less than the seed does. For methods newer than the paper they are searched with the best point and two seeds;
their final runs are those of FPF, which also hold the accuracy before it.
``--rows er,star`` trains only these methods, with and without FPF, and leaves the results of the others as they are.
The runs use two processes with one thread each. Finished runs in FOLDER are skipped. ``search`` writes
results/searches/seq-mnist-500.json, ``final`` results/seq-mnist.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from committed import add, search, search_file
from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunFailed
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.sweep import sweep

BASE = {"buffer": 500, "network": "mlp", "epochs": 1, "batch": 10}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "k-fpf+sgd": {"lr": [0.01, 0.03, 0.1], "ft_lr": [0.03, 0.1, 0.3], "every": [50, 100, 300]},
    "derpp": {"lr": [0.03, 0.1], "alpha": [1.0, 2.0], "beta": [1.0], "replay": [10]},
    "der": {"lr": [0.03, 0.1], "alpha": [1.0, 2.0], "replay": [10]},
    "er": {"lr": [0.05, 0.1], "replay": [10, 32]},
    "fdr": {"lr": [0.03, 0.1], "alpha": [1.0, 3.0], "replay": [128]},
    "icarl": {"lr": [0.1, 0.3, 1.0], "replay": [10]},
    "agem": {"lr": [0.03, 0.1, 0.3], "replay": [128]},
    "gdumb": {"lr_high": [0.05, 0.1, 0.2], "cutmix": [0.5]},
    "joint": {"lr": [0.03, 0.1]},
    "sgd": {"lr": [0.03, 0.1]},
    "oewc": {"lr": [0.03], "penalty": [10.0, 90.0], "gamma": [1.0]},
    # Newer than the paper, around the settings of their authors.
    "er_ace": {"lr": [0.03, 0.1], "replay": [10, 32]},
    "cls_er": {
        "lr": [0.03, 0.1],
        "replay": [32],
        "consistency": [2.0],
        "plastic_rate": [1.0],
        "stable_rate": [0.9],
        "plastic_decay": [0.99],
        "stable_decay": [0.99],
    },
    "star": {
        "lr": [0.03],
        "replay": [10],
        "alpha": [1.0],
        "beta": [1.0],
        "stability": [0.01, 0.1],
        "gamma": [0.05],
    },
    "scr": {"lr": [0.03, 0.1], "replay": [10], "temperature": [0.07, 0.2]},
    "xder_rpc": {"lr": [0.03], "replay": [10], "alpha": [0.1, 1.0, 2.0], "beta": [0.5]},  # lr 0.1 diverges with α 1
}
PAPER = ("er", "agem", "icarl", "fdr", "der", "derpp")  # the methods that the paper combines with FPF
NEWER = ("er_ace", "cls_er", "star", "scr", "xder_rpc")
# The thresholds choose the last layer, and the last two.
FPF_GRID: dict[str, list[Any]] = {"ft_lr": [0.3, 0.1, 0.03, 0.01, 0.003], "threshold": [1.0, 0.5]}
# SCR never trains the output layer, so S_g never chooses it.
FPF_GRIDS = {"scr": [FPF_GRID, {"ft_lr": [1.0, 0.3, 0.1, 0.03], "groups": ["fc3"]}]}


def settings(row: str, point: dict[str, Any], seed: int, *, validation: bool) -> Settings:
    """Return the settings of one run of a row."""
    repair, _, method = row.rpartition("+")
    given = {**BASE, **point, "seed": seed, "validation": validation, "repair": repair or "none"}
    return resolve("seq-mnist", method, given)[0]


def accuracies(runs: list[Settings], work: Path) -> Iterator[tuple[Settings, float]]:
    """Train some runs and yield the accuracy of each."""
    for event in sweep([Planned(run, {}) for run in runs], work, Execution(workers=2, retry=True)):
        if isinstance(event, RunFailed):
            raise ValueError(f"{event.settings.label}, seed {event.settings.seed}: {event.error}")
        if isinstance(event, RunDone):
            yield event.settings, record.read(record.path(work, event.settings)).accuracy


def points(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every point of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def ranked(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a row, the most accurate first."""
    return [entry["point"] for entry in sorted(entries, key=lambda entry: -entry["validation_accuracy"])]


def search_grids(work: Path, methods: Sequence[str]) -> None:
    """Train every point of some methods on the validation split and write the best of each row."""
    found: dict[str, list[dict[str, Any]]] = {}
    best: dict[str, dict[str, Any]] = {}

    def measure(rows: dict[str, list[dict[str, Any]]], seeds: int) -> None:
        tasks = {
            (row, json.dumps(point)): [settings(row, point, seed, validation=True) for seed in range(seeds)]
            for row, grid in rows.items()
            for point in grid
        }
        accuracy_by_id = {
            run.id: value for run, value in accuracies([run for runs in tasks.values() for run in runs], work)
        }
        for (row, point), runs in tasks.items():
            accuracy = round(mean(accuracy_by_id[run.id] for run in runs), 3)
            found.setdefault(row, []).append({"point": json.loads(point), "validation_accuracy": accuracy})
        for row in rows:
            best[row] = ranked(found[row])[0]
            print(row, best[row], max(entry["validation_accuracy"] for entry in found[row]), flush=True)

    measure({row: points(GRIDS[row]) for row in GRIDS if row.rpartition("+")[2] in methods}, 2)
    for rows, count, seeds in ((PAPER, 2, 5), (NEWER, 1, 2)):
        repairs = {}
        for row in rows:
            if row in methods:
                repair = [point for grid in FPF_GRIDS.get(row, [FPF_GRID]) for point in points(grid)]
                repairs[f"fpf+{row}"] = [best | point for best in ranked(found[row])[:count] for point in repair]
        measure(repairs, seeds)
    present = search("seq-mnist", 500)
    result = {"command": present["command"], "best": present["best"] | best, "grid": present["grid"] | found}
    search_file("seq-mnist", 500).write_text(json.dumps(result, indent=1) + "\n")


def final(work: Path, methods: Sequence[str]) -> None:
    """Train the best point of each row of some methods with several seeds and add the records to results/."""
    chosen = []
    for row, point in search("seq-mnist", 500)["best"].items():
        method = row.rpartition("+")[2]
        if method in methods and row not in NEWER:  # the record of FPF has the accuracy before it
            chosen += [settings(row, point, seed, validation=False) for seed in range(5)]
    for run, accuracy in accuracies(chosen, work):
        print(run.label, run.seed, accuracy, flush=True)
    add("seq-mnist", (record.read_run(work, run) for run in chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("search", "final"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", default=",".join(dict.fromkeys(row.rpartition("+")[2] for row in GRIDS)))
    arguments = parser.parse_args()
    (search_grids if arguments.stage == "search" else final)(arguments.work, arguments.rows.split(","))


if __name__ == "__main__":
    main()
