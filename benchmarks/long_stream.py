"""Measure the memory of FPF in an endless loop: 2,000 tasks of 1,000 steps, two million calls of ``observe``.

    python benchmarks/long_stream.py [--tasks 2000] [--steps 1000] [--out FILE]

The network is small, so that the bookkeeping dominates. ``boundary`` marks the tasks, and k-FPF finetunes once per
task. The record holds the peak resident memory after task 20 and after the last task.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import forgetless
from provenance import provenance


def peak_kilobytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    fpf = forgetless.FPF(
        model, capacity=200, every=arguments.steps, steps=2, lr=0.01, window=arguments.steps // 4, groups="all"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 4, 8), torch.randint(4, (64, 4))
    began, peaks = time.perf_counter(), {}
    for task in range(1, arguments.tasks + 1):
        for step in range(arguments.steps):
            inputs, labels = x[step % 64], y[step % 64]
            if step % 50 == 0:  # enough training for the weights to move
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            fpf.observe(inputs, labels)
        fpf.boundary()
        if task in (20, arguments.tasks // 2, arguments.tasks):
            peaks[task] = peak_kilobytes()
            print(task, peaks[task], "kB", round(time.perf_counter() - began, 1), "s", flush=True)
    first, last = peaks[20], peaks[arguments.tasks]
    result = {
        "tasks": arguments.tasks, "observed": arguments.tasks * arguments.steps, "peak_kilobytes": peaks,
        "growth_percent": round(100 * (last / first - 1), 2), "seconds": round(time.perf_counter() - began, 1),
        **provenance("cpu"),
    }  # fmt: skip
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
