"""Measure whether runs that are killed with SIGKILL at random moments and restarted end bit for bit the same.

    python benchmarks/soak.py [--kills 200] [--processes 2] [--out FILE]

Every method trains on the digits, with and without k-FPF, with a checkpoint every ten steps. A run that was killed
again and again must end with the same weights as an undisturbed run, bit for bit, and with the same record apart from
the times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provenance import provenance

METHODS = (
    "sgd", "joint", "oewc", "gdumb", "er", "agem", "icarl", "fdr", "der", "derpp", "mir", "si", "mas", "packnet", "hat",
    "masked",
)  # fmt: skip
MOMENTS = (2.0, 7.0)  # range of seconds after which a process is killed


def child(name: str, repair: str, seed: int, folder: Path) -> None:
    """Run once in this process, from the checkpoint if there is one, and write the record and the weights."""
    import torch
    from safetensors.torch import save_file

    from forgetless.experiments.run import run
    from forgetless.experiments.settings import resolve
    from forgetless.experiments.storage import Schedule
    from forgetless.training.events import Ended, Event

    torch.set_num_threads(1)
    given: dict[str, Any] = {"epochs": 12, "seed": seed}
    if name == "gdumb":
        given |= {"epochs": 4, "memory_epochs": 30}
        given |= {"groups": ("fc3",)} if repair != "none" else {}
    settings, sources = resolve("seq-digits", name, given | ({"repair": repair} if repair != "none" else {}))

    def keep_weights(event: Event) -> None:
        if isinstance(event, Ended):
            save_file(dict(event.result.network.state_dict()), folder / "weights.safetensors")

    outcome = run(settings, sources, folder, keep_weights, schedule=Schedule(steps=10, seconds=None))
    values = {key: value for key, value in outcome.to_dict().items() if key != "seconds"}
    (folder / "record-without-times.json").write_text(json.dumps(values, sort_keys=True))


def call(case: tuple[str, str, int], folder: Path) -> list[str]:
    """Return the command that runs a case in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return [sys.executable, __file__, "child", *map(str, case), str(folder)]


def kill_repeatedly(case: tuple[str, str, int], folder: Path, moments: random.Random) -> dict[str, Any]:
    """Compare an undisturbed run with one that is killed until it ends by itself."""
    subprocess.run(call(case, folder / "alone"), check=True, capture_output=True)
    kills = resumed = 0
    while True:
        if list((folder / "killed").glob("*/checkpoint.safetensors")):
            resumed += 1
        process = subprocess.Popen(call(case, folder / "killed"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        end = time.monotonic() + moments.uniform(*MOMENTS)
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert process.stderr is not None
    error = process.stderr.read().decode()
    same = {
        file: (folder / "alone" / file).read_bytes() == (folder / "killed" / file).read_bytes()
        for file in ("record-without-times.json", "weights.safetensors")
        if process.returncode == 0
    }
    outcome = {"method": case[0], "repair": case[1], "seed": case[2], "kills": kills, "from_checkpoints": resumed}
    return outcome | {
        "same_record": same.get("record-without-times.json"),
        "same_weights": same.get("weights.safetensors"),
        "error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [(name, repair) for name in METHODS for repair in ("none", "k-fpf") if (name, repair) != ("joint", "k-fpf")]
    runs: list[dict[str, Any]] = []
    moments = random.Random()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.processes) as pool:
        for number in itertools.count():
            if number * arguments.processes >= len(cases) and sum(run["kills"] for run in runs) >= arguments.kills:
                break
            first = number * arguments.processes
            batch = [(*cases[i % len(cases)], i // len(cases)) for i in range(first, first + arguments.processes)]
            folders = [Path(name) / "-".join(map(str, case)) for case in batch]
            for outcome in pool.map(kill_repeatedly, batch, folders, [moments] * len(batch)):
                runs.append(outcome)
                print(json.dumps(outcome), flush=True)
    identical = sum(bool(run["same_record"] and run["same_weights"]) for run in runs)
    result = {
        "kills": sum(run["kills"] for run in runs), "from_checkpoints": sum(run["from_checkpoints"] for run in runs),
        "runs": len(runs), "identical": identical, "each": runs, **provenance("cpu"),
    }  # fmt: skip
    print({key: result[key] for key in ("kills", "from_checkpoints", "runs", "identical")})
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "child":
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main()
