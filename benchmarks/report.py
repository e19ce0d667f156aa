"""Measure how long `forgetless report` takes for 1,000 records, including the start of Python.

    python benchmarks/report.py [--records 1000] [--out FILE]

The records come from real runs on the digits, repeated with other learning rates and seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgetless.experiments import record
from forgetless.experiments.run import run
from forgetless.experiments.settings import Settings, resolve
from provenance import provenance

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sgd", {}),
    ("er", {}),
    ("derpp", {}),
    ("sgd", {"repair": "k-fpf"}),
)


def write(count: int, folder: Path) -> None:
    """Write records of a few real runs under other learning rates and seeds."""
    originals = [run(resolve("seq-digits", method, given)[0]) for method, given in METHODS]
    for number in range(count):
        original = originals[number % len(originals)]
        lr, seed = 0.01 * (1 + number // (5 * len(originals))), number // len(originals) % 5
        settings = Settings.from_dict({**original.settings, "lr": lr, "seed": seed})
        record.write(replace(original, id=settings.id, settings=settings.to_dict()), record.path(folder, settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(arguments.records, folder / "runs")
        call = [sys.executable, "-c", "from forgetless.cli.app import main; main()", "report", "runs"]
        seconds = []
        for _ in range(arguments.repeat):
            began = time.perf_counter()
            subprocess.run(call, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            seconds.append(round(time.perf_counter() - began, 3))
        outcome = {
            "records": len(record.files(folder / "runs")), "seconds": sorted(seconds),
            "page_kilobytes": (folder / "report.html").stat().st_size // 1000, **provenance("cpu"),
        }  # fmt: skip
    print(json.dumps(outcome))
    if arguments.out:
        arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
