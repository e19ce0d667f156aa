"""Measure the accuracies of ``examples/own_loop.py`` on the digits.

python benchmarks/digits.py [--seeds 5] [--out FILE]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean, stdev

import torch

from provenance import parse_arguments, provenance, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import own_loop


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=5)
    torch.set_num_threads(1)
    rows = {}
    start = time.perf_counter()
    for way in own_loop.WAYS:
        accuracies = [own_loop.run(seed, way)[0] for seed in range(arguments.seeds)]
        rows[way] = {
            "mean": round(mean(accuracies), 2),
            "std": round(stdev(accuracies), 2),
            "accuracies": [round(accuracy, 2) for accuracy in accuracies],
        }
    seconds = round(time.perf_counter() - start, 1)
    publish({"accuracy_percent": rows, "seconds": seconds} | provenance(), arguments.out)


if __name__ == "__main__":
    main()
