"""Choose the settings of ``forgetless demo`` on validation images, and measure its rows with more seeds.

    python benchmarks/demo.py --out benchmarks/records/demo.json

Each row has a grid of its own. Every point is validated with five seeds, and the best one is tested with ten.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forgetless.experiments.execution import Execution
from forgetless.experiments.search import SearchResult, search
from provenance import provenance, publish

STREAM = "view-digits"
RATES = (0.01, 0.03, 0.05, 0.1)

# By row: the method, the settings that are given, and the grid.
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "sgd": ("sgd", {}, {"lr": RATES}),
    "fpf+sgd": ("sgd", {"repair": "fpf"}, {"lr": RATES, "ft_lr": (0.05, 0.1, 0.2), "steps": (100, 300)}),
    "k-fpf-ce": (
        "sgd",
        {"repair": "k-fpf", "threshold": 1.0},
        {"lr": RATES, "ft_lr": (0.05, 0.1), "steps": (50, 100), "every": (200, 400)},
    ),
    "er": ("er", {}, {"lr": RATES}),
    "derpp": ("derpp", {}, {"lr": RATES, "alpha": (0.2, 0.5, 1.0), "beta": (0.5, 1.0)}),
    "gdumb": ("gdumb", {}, {"lr_high": (0.05, 0.1, 0.2)}),
    "joint": ("joint", {}, {"lr": RATES}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--search-seeds", type=int, default=5)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = {}
    with TemporaryDirectory() as folder:
        for row, (method, given, grid) in ROWS.items():
            *_, result = search(
                STREAM, method, given, grid, Path(folder), seeds=arguments.seeds, search_seeds=arguments.search_seeds,
                execution=Execution(workers=arguments.workers),
            )  # fmt: skip
            assert isinstance(result, SearchResult)
            rows[row] = _summary(result)
    publish({"stream": STREAM, "rows": rows} | provenance(), arguments.out)


def _summary(result: SearchResult) -> dict[str, Any]:
    """Return the grid, the chosen point, and the accuracy, compute and repaired share on the test set."""
    first = result.records[0]
    return {
        "chosen": result.chosen,
        "points": [{**point.values, "validation": round(point.score, 2)} for point in result.points],
        "accuracies": [round(record.accuracy, 2) for record in result.records],
        "mean": round(result.test_accuracy.mean, 2),
        "std": round(result.test_accuracy.std, 2),
        "flops": sum(first.flops.values()),
        "share": first.share,
    }


if __name__ == "__main__":
    main()
