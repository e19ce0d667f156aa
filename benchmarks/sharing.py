"""Measure the time saved where a method and FPF's grid after it share one training, compared with separate runs.

    python benchmarks/sharing.py [--stream seq-mnist] [--method er] [--repeats 3] [--out FILE]

The grid has five learning rates of FPF. The script checks that both ways reach the same accuracies.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from forgetless.experiments.build import build_stream
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.record import Record
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from provenance import provenance, publish

RATES = (1.0, 0.3, 0.1, 0.03, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="seq-mnist")
    parser.add_argument("--method", default="er")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = {"lr": 0.1, "batch": 10, "replay": 10}  # the presets of FPF's rows may differ
    repairs = [{}, *({"repair": "fpf", "ft_lr": rate} for rate in RATES)]
    runs = [resolve(arguments.stream, arguments.method, {**base, **repair})[0] for repair in repairs]
    stream = build_stream(runs[0])
    run(runs[0], stream=stream)  # warms up
    seconds: dict[str, list[float]] = {"alone": [], "sharing": []}
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        alone = {settings.id: run(settings, stream=stream).accuracy for settings in runs}
        middle = time.perf_counter()
        together = {settings.id: outcome for settings, outcome in run_lanes(runs, 1)}
        seconds["alone"].append(round(middle - start, 2))
        seconds["sharing"].append(round(time.perf_counter() - middle, 2))
        if not all(isinstance(each, Record) and each.accuracy == alone[id_] for id_, each in together.items()):
            raise ValueError("a run that shares its training ended with another accuracy than it does alone")
    best = {way: min(values) for way, values in seconds.items()}
    result = {
        **provenance(), "stream": arguments.stream, "method": arguments.method, "runs": len(runs), "seconds": seconds,
        "times_faster": round(best["alone"] / best["sharing"], 2),
    }  # fmt: skip
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
