"""Measure the time that checkpoints cost: ER on Seq-MNIST with one every 500 steps, and without.

    python benchmarks/checkpoints.py [--repeat 5] [--stream seq-mnist] [--out FILE]

The time is that of the whole run on one thread, without reading the data. The runs alternate, and
the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from forgetless.experiments.build import build_stream
from forgetless.experiments.record import CHECKPOINT
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from forgetless.experiments.storage import Schedule
from forgetless.training.events import Event, TaskEnded
from provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--stream", default="seq-mnist")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings, _ = resolve(arguments.stream, "er", {"buffer": 500, "replay": 10})
    stream = build_stream(settings)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    sizes: list[int] = []
    for _ in range(arguments.repeat):
        for kind, schedule in (("without", Schedule(None, None)), ("with", Schedule(arguments.steps, None))):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder)

                def note(event: Event, out: Path = out) -> None:
                    if isinstance(event, TaskEnded):
                        sizes.extend(file.stat().st_size for file in out.glob(f"*/{CHECKPOINT}"))

                began = time.perf_counter()
                outcome = run(settings, {}, out, note, stream=stream, schedule=schedule)
                seconds[kind].append(round(time.perf_counter() - began, 3))
                print(kind, seconds[kind][-1], flush=True)
    best = {kind: min(values) for kind, values in seconds.items()}
    result = {
        "stream": arguments.stream, "steps": outcome.steps, "every": arguments.steps, "seconds": seconds, "best": best,
        "overhead_percent": round(100 * (best["with"] / best["without"] - 1), 2), "kilobytes": max(sizes) // 1000,
        **provenance("cpu"),
    }  # fmt: skip
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
