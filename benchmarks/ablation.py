"""Measure what each hand-written kernel and special case saves of a training step.

    python benchmarks/ablation.py [--device cuda] [--seconds 210] [--out FILE]

Every case is measured with everything on and with one special case switched off. The measurements of a case are
interleaved in one process, and the record holds the median and the minimum over the rounds. A special case that saves
less than 5 % of every step is not worth its code.

On a CPU the network is the MLP at batch 10 and 128, on one thread; times are CPU time of the process, so that other
processes on the machine do not count. On a GPU it is ResNet-18 (or ``--network mlp``) at batch 32 in bf16, captured, in
one lane. The records ablation-*.json were made before the special cases that save less than 5 % were deleted: the
one-node MLP, and the kernels and shortcuts for the update, cross-entropy, augmentation and 1×1 convolutions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import speed
from provenance import provenance

WAYS = ("sgd", "er", "finetuning")
MLP_WAYS = {10: ("sgd", "er", "der", "finetuning"), 128: ("sgd", "er")}  # by batch; finetuning draws its own batches
KERNELS = {  # the module that asks whether its kernel can be used
    "reservoir": "forgetless.memory.samplers",
    "norm": "forgetless.networks.norm",
}
CPU = ("backpropagate", "onednn switch", "all")
GPU = (*KERNELS, "all")


@contextmanager
def without(case: str | None) -> Iterator[None]:
    """Switch one special case off."""
    with ExitStack() as stack:
        if case in ("backpropagate", "all"):
            for module in ("methods.learner", "repair.finetuning"):
                stack.enter_context(patch(f"forgetless.{module}.backpropagates", lambda *_: False))
        if case in ("onednn switch", "all"):
            stack.enter_context(patch("forgetless.compute.engine.Engine.adapt", lambda *_, **__: None))
        for kernel, module in KERNELS.items():
            if case in (kernel, "all"):
                stack.enter_context(patch(f"{module}.kernels", SimpleNamespace(can_serve=lambda _: False)))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--network", default="resnet18", choices=["resnet18", "mlp"], help="the network on a GPU")
    parser.add_argument("--seconds", type=float, default=210, help="start no measurement after this many seconds")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    cases = (None, *(GPU if cuda else CPU))
    if not cuda:
        torch.set_num_threads(1)
    began = time.perf_counter()
    times: dict[tuple[int, str, str | None], list[float]] = {}
    for number in range(arguments.rounds + 1):  # the first round compiles kernels and is not counted
        for batch in (32,) if cuda else (10, 128):
            shape = argparse.Namespace(
                network=arguments.network if cuda else "mlp", size=None, batch=batch,
                steps=200 if cuda or batch > 10 else 800, device=arguments.device,
                precision="bf16" if cuda else "fp32", compile=False, threads=1, onednn=False,
            )  # fmt: skip
            for way in WAYS if cuda else MLP_WAYS[batch]:
                for case in cases:
                    if time.perf_counter() - began > arguments.seconds:
                        return
                    clock = SimpleNamespace(perf_counter=time.perf_counter if cuda else time.process_time)
                    with without(case), patch("speed.time", clock):
                        milliseconds = speed.measure(way, 1, True, shape)["milliseconds"]
                    if number:
                        times.setdefault((batch, way, case), []).append(milliseconds)
                        _write(times, arguments.out, arguments.device)
                print(f"round {number}, batch {batch}, {way}: {time.perf_counter() - began:.0f} s", flush=True)


def _write(times: dict[tuple[int, str, str | None], list[float]], path: Path | None, device: str) -> None:
    """Write the record with one row for each case so far; ``saves`` is the part of the step without the case."""
    rows = []
    for (batch, way, case), measured in times.items():
        median, least = statistics.median(measured), min(measured)
        row: dict[str, Any] = {
            "batch": batch, "way": way, "without": case, "median_milliseconds": round(median, 4),
            "minimum_milliseconds": round(least, 4), "rounds": len(measured),
        }  # fmt: skip
        if case is not None:
            whole = times[batch, way, None]
            row["saves_median"] = round(1 - statistics.median(whole) / median, 3)
            row["saves_minimum"] = round(1 - min(whole) / least, 3)
        rows.append(row)
    if path is not None:
        path.write_text(json.dumps({"rows": rows, **provenance(device)}, indent=1) + "\n")
    elif rows:
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
