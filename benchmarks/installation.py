"""Measure the wheel in a new environment: its size, its dependencies, the time of the import, and the demo.

python benchmarks/installation.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from provenance import provenance, publish

ROOT = Path(__file__).parent.parent
QUIET = ["--quiet", "--disable-pip-version-check"]
IMPORT = """
import time
import torch
began = time.perf_counter()
from forgetless import FPF, train
print(time.perf_counter() - began)
"""


def run(*command: str | Path) -> str:
    """Run a command in the root folder and return its output."""
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, cwd="/").stdout


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    """Build the wheel, install it in a new environment and measure both."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", *QUIET, "-c", ROOT / "constraints.txt", wheel)
    installed = sorted(row["name"] for row in json.loads(run(python, "-m", "pip", "list", "--format", "json")))
    run(python, "-c", IMPORT)  # compiles the files to bytecode
    demo = subprocess.run([folder / "venv" / "bin" / "forgetless", "demo"], capture_output=True, text=True, cwd=folder)
    run(python, "-m", "pip", "install", *QUIET, "-c", ROOT / "constraints.txt", f"{wheel}[digits]")
    with_extra = subprocess.run([folder / "venv" / "bin" / "forgetless", "demo"], capture_output=True, cwd=folder)
    return {
        "wheel_kilobytes": round(wheel.stat().st_size / 1000),
        "sdist_kilobytes": round(sdist.stat().st_size / 1000),
        "installed": installed,
        "import_seconds_beyond_torch": round(median(float(run(python, "-c", IMPORT)) for _ in range(repeats)), 3),
        "demo_without_its_extra": (demo.stdout + demo.stderr).strip().splitlines()[-1:],
        "demo_with_its_extra": with_extra.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "installation.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        values = measure(Path(folder), arguments.repeats)
    publish({**values, **provenance()}, arguments.out)


if __name__ == "__main__":
    main()
