"""Must images be cropped and flipped? The same runs on the validation split, with and without.

    python benchmarks/augmentation.py --stream seq-pathmnist --work FOLDER [--buffer 200] [--device cuda] [--out FILE]

k-FPF-CE and FPF after ER, one seed; runs that have a record in FOLDER are not done again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgetless.experiments import run as build
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from provenance import provenance, publish

WAYS: dict[str, dict[str, Any]] = {
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


def measure(runs: list[Settings], way: str, work: Path) -> list[Record]:
    first = runs[0]
    stream = replace(build.build_stream(first), **WAYS[way])
    streams = {build.stream_key(first): (stream, stream.checksum)}
    found = []
    for _, made in build.run_lanes(runs, out=work / way.replace(" ", "-"), streams=streams):
        if not isinstance(made, Record):
            raise made.error
        found.append(made)
    return found


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
    found = {way: measure(runs, way, arguments.work) for way in WAYS}
    rows = [
        {"images": way, "label": made.label, "accuracy": made.accuracy, "settings": made.settings}
        for way, records in found.items()
        for made in records
    ]
    first = found["as they are"][0]
    where = {"device": first.device, "torch": first.versions["torch"], "python": first.versions["python"]}
    publish({**provenance(), **where, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
