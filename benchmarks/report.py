"""How long `forgetless report` takes for a thousand records, the start of Python included.

    python benchmarks/report.py [--records 1000] [--out FILE]

The records are of real runs on the digits, written again under other learning rates and seeds.
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
from forgetless.experiments import run as build
from forgetless.experiments.settings import Settings, resolve
from provenance import provenance

WAYS: tuple[tuple[str, dict[str, Any]], ...] = (("sgd", {}), ("er", {}), ("derpp", {}), ("sgd", {"repair": "k-fpf"}))


def write(count: int, folder: Path) -> None:
    made = [build.run(resolve("seq-digits", method, given)[0]) for method, given in WAYS]
    for number in range(count):
        one = made[number % len(made)]
        lr, seed = 0.01 * (1 + number // (5 * len(made))), number // len(made) % 5
        settings = Settings.from_dict({**one.settings, "lr": lr, "seed": seed})
        record.write(replace(one, id=settings.id, settings=settings.to_dict()), record.path(folder, settings))


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
        made = {
            "records": len(record.files(folder / "runs")), "seconds": sorted(seconds),
            "page_kilobytes": (folder / "report.html").stat().st_size // 1000, **provenance("cpu"),
        }  # fmt: skip
    print(json.dumps(made))
    if arguments.out:
        arguments.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
