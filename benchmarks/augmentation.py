"""Measure whether images must be cropped and flipped: the same runs on the validation split, with and without.

    python benchmarks/augmentation.py --stream seq-pathmnist --work FOLDER [--buffer 200] [--device cuda] [--out FILE]

The runs are k-FPF-CE and FPF after ER with one seed. Finished runs in FOLDER are skipped.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgetless.experiments.build import build_stream, stream_key
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from provenance import provenance, publish

AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "as they are": {"pad": 0, "flip": False, "mirror": False},
    "cropped": {"pad": 4, "flip": False, "mirror": False},
    "cropped and flipped": {"pad": 4, "flip": True, "mirror": False},
    "cropped, mirrored at the edge, and flipped": {"pad": 4, "flip": True, "mirror": True},
}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"repair": "k-fpf", "lr": 0.03, "ft_lr": 0.05, "every": 500, "threshold": 0.1}),
    ("er", {"repair": "fpf", "lr": 0.1, "ft_lr": 0.1, "threshold": 0.1}),
    ("er", {"repair": "fpf", "lr": 0.1, "ft_lr": 0.3, "threshold": 0.1}),
]


def measure(runs: list[Settings], augmentation: str, work: Path) -> list[Record]:
    """Return the records of the runs with one kind of augmentation."""
    first = runs[0]
    stream = replace(build_stream(first), **AUGMENTATIONS[augmentation])
    streams = {stream_key(first): stream}
    records = []
    for _, outcome in run_lanes(runs, out=work / augmentation.replace(" ", "-"), streams=streams):
        if not isinstance(outcome, Record):
            raise outcome.error
        records.append(outcome)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="seq-pathmnist")
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    common = {"buffer": arguments.buffer, "device": arguments.device, "validation": True}
    runs = [resolve(arguments.stream, method, {**given, **common})[0] for method, given in RUNS]
    measured = {augmentation: measure(runs, augmentation, arguments.work) for augmentation in AUGMENTATIONS}
    rows = [
        {"images": augmentation, "label": run.label, "accuracy": run.accuracy, "settings": run.settings}
        for augmentation, records in measured.items()
        for run in records
    ]
    first = measured["as they are"][0]
    origin = {"device": first.device, "torch": first.versions["torch"], "python": first.versions["python"]}
    publish({**provenance(), **origin, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
