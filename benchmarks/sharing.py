"""A method and FPF's grid after it: each run by itself, and all of them sharing one training. Ratio in one run.

    python benchmarks/sharing.py [--stream seq-mnist] [--method er] [--repeats 3] [--out FILE]

The grid is five learning rates of FPF. Both ways give the same accuracies, which is checked.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from forgetless.experiments import run as build
from forgetless.experiments.record import Record
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
    base = {"lr": 0.1, "batch": 10, "replay": 10}  # presets of FPF's rows may have others
    ways = [{}, *({"repair": "fpf", "ft_lr": rate} for rate in RATES)]
    runs = [resolve(arguments.stream, arguments.method, {**base, **way})[0] for way in ways]
    stream = build.build_stream(runs[0])
    build.run(runs[0], stream=stream)  # to warm up
    seconds: dict[str, list[float]] = {"alone": [], "sharing": []}
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        alone = {one.id: build.run(one, stream=stream).accuracy for one in runs}
        middle = time.perf_counter()
        together = {one.id: made for one, made in build.run_lanes(runs, 1)}
        seconds["alone"].append(round(middle - start, 2))
        seconds["sharing"].append(round(time.perf_counter() - middle, 2))
        same = all(isinstance(made, Record) and made.accuracy == alone[name] for name, made in together.items())
        if not same:
            raise ValueError("a run that shares its training did not end as it does alone")
    best = {way: min(values) for way, values in seconds.items()}
    result = {
        **provenance(), "stream": arguments.stream, "method": arguments.method, "runs": len(runs), "seconds": seconds,
        "times_faster": round(best["alone"] / best["sharing"], 2),
    }  # fmt: skip
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
