"""What a record says about where it comes from: command, device, versions."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import forgetless


def provenance(device: str = "cpu") -> dict[str, Any]:
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_settings(sys.argv[1:])]),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "forgetless": forgetless.__version__,
    }


def _settings(arguments: list[str]) -> list[str]:
    """The command line less what differs from machine to machine."""
    made = list(arguments)
    if "--out" in made:
        at = made.index("--out")
        del made[at : at + 2]
    for option, word in (("--work", "FOLDER"), ("--avalanche", "PYTHON")):
        if option in made:
            made[made.index(option) + 1] = word
    return made


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Print a record, and write it to ``out`` if given."""
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
