"""Time a new user's first minutes: the set-up of README in a new environment, the demo, and README's example.

    python benchmarks/start.py [--wheels FOLDER] [--out FILE]

``--wheels`` is for a machine without a package index: torch is that of the running Python, and everything else is
installed from the wheels in FOLDER. Nothing is downloaded then, and the record says so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import provenance, publish

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def install_offline(python: Path, wheels: Path) -> None:
    """Install the package from wheels, with the torch of the running Python."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    site = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    (Path(site.strip()) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    subprocess.run([*pip, "--ignore-installed", *wheels.glob("*.whl")], check=True, env=offline)
    subprocess.run([*pip, "-e", "."], check=True, cwd=ROOT, env=offline)


def measure(folder: Path, wheels: Path | None) -> dict[str, float]:
    """Return the seconds of each step."""
    environment = folder / "venv"
    python = environment / "bin" / "python"
    example = folder / "example.py"
    example.write_text(next(iter(EXAMPLE.findall((ROOT / "README.md").read_text()))))
    seconds = {}

    def step(name: str, *command: str | Path) -> None:
        start = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, cwd=folder)
        seconds[name] = round(time.perf_counter() - start, 1)

    if wheels is None:
        step("set-up", "make", "-C", ROOT, f"PYTHON={sys.executable}", f"VENV={environment}", environment / "digits")
    else:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        install_offline(python, wheels)
        seconds["set-up"] = round(time.perf_counter() - start, 1)
    step("demo", environment / "bin" / "forgetless", "demo")
    step("example", python, example)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="install from the wheels in this folder, without an index")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"seconds": measure(Path(folder), arguments.wheels)}
    result["downloaded"] = arguments.wheels is None
    publish(result | provenance(), arguments.out)


if __name__ == "__main__":
    main()
