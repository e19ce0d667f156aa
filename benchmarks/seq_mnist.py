"""Measure the paper's MLP column: every row on Seq-MNIST with buffer 500, with settings chosen on validation.

    python benchmarks/seq_mnist.py search --work FOLDER   # every point of the grids on validation, two seeds
    python benchmarks/seq_mnist.py final --work FOLDER    # the best point of each row on all images, five seeds

FPF's learning rate and threshold are searched with the two best points of its method and with five seeds, because they
matter less than the seed does. The runs use two processes with one thread each. Finished runs in FOLDER are skipped.
``search`` writes results/searches/seq-mnist-500.json, ``final`` results/seq-mnist.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
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
}
FPF = ("er", "agem", "icarl", "fdr", "der", "derpp")
# The thresholds choose the last layer, and the last two.
FPF_GRID = {"ft_lr": [0.3, 0.1, 0.03, 0.01, 0.003], "threshold": [1.0, 0.5]}


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


def search_grids(work: Path) -> None:
    """Train every point on the validation split and write the best of each row."""
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
            best[row] = max(found[row], key=lambda entry: entry["validation_accuracy"])["point"]
            print(row, best[row], max(entry["validation_accuracy"] for entry in found[row]), flush=True)

    measure({row: points(grid) for row, grid in GRIDS.items()}, 2)
    top = {row: sorted(found[row], key=lambda entry: -entry["validation_accuracy"])[:2] for row in FPF}
    measure({f"fpf+{row}": [{**e["point"], **point} for e in top[row] for point in points(FPF_GRID)] for row in FPF}, 5)
    text = json.dumps({"command": "python benchmarks/seq_mnist.py search", "best": best, "grid": found}, indent=1)
    search_file("seq-mnist", 500).write_text(text + "\n")


def final(work: Path) -> None:
    """Train the best point of each row with five seeds and add the records to results/."""
    best = search("seq-mnist", 500)["best"]
    chosen = [settings(row, point, seed, validation=False) for row, point in best.items() for seed in range(5)]
    for run, accuracy in accuracies(chosen, work):
        print(run.label, run.seed, accuracy, flush=True)
    add("seq-mnist", (record.read_run(work, run) for run in chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("search", "final"))
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    (search_grids if arguments.stage == "search" else final)(arguments.work)


if __name__ == "__main__":
    main()
