"""Parse the options of a benchmark, state where its record comes from, and publish it."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import forgetless


def parse_arguments(description: str | None, seeds: int) -> argparse.Namespace:
    """Return the options of a benchmark with several seeds: ``seeds``, with this default, and ``out``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Return the command, the device and the versions of this process."""
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_portable(sys.argv[1:])]),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "forgetless": forgetless.__version__,
    }


def _portable(arguments: list[str]) -> list[str]:
    """Return the command line without what differs from machine to machine."""
    words = list(arguments)
    if "--out" in words:
        position = words.index("--out")
        del words[position : position + 2]
    for option, placeholder in (("--work", "FOLDER"), ("--wheels", "FOLDER"), ("--avalanche", "PYTHON")):
        if option in words:
            words[words.index(option) + 1] = placeholder
    return words


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Print a record and write it to ``out`` if given."""
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
