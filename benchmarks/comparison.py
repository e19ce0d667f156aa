"""Measure wall-clock time and accuracy of whole runs of Seq-CIFAR-10 in lanes on one GPU.

    python benchmarks/comparison.py twelve --out FILE     # six k-FPF, two ER, two DER++, two SGD + FPF, in one process
    python benchmarks/comparison.py packs --out FILE      # eight k-FPF, then eight ER, then eight DER++
    python benchmarks/comparison.py precision --out FILE  # five k-FPF and five ER in bf16, and the same in tf32

The seconds cover everything from the start of the first run to the end of the last, including evaluation, capture and
compilation of kernels, but not reading the data set. The packs are compared with each other, so one short run of each
compiles the kernels beforehand. Results are written as they arrive, and parts that are already in FILE are skipped.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from forgetless.data.stream import Stream
from forgetless.experiments.build import build_run, build_stream
from forgetless.experiments.lanes import interleave
from forgetless.experiments.run import make_record
from forgetless.experiments.settings import Settings, resolve
from forgetless.training.events import Ended
from provenance import provenance

# Stated here instead of taken from the presets, which change with new searches; the rates fit these numbers of steps.
K_FPF = {"repair": "k-fpf", "every": 1500, "steps": 100, "threshold": 0.3, "lr": 0.01, "ft_lr": 0.03}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "k-fpf-ce": ("sgd", K_FPF),
    "k-fpf-kd": ("sgd", K_FPF | {"kd": 0.1}),
    "er": ("er", {}),
    "derpp": ("derpp", {}),
    "fpf+sgd": ("sgd", {"repair": "fpf"}),
}
TWELVE = [("k-fpf-ce", 3), ("k-fpf-kd", 3), ("er", 2), ("derpp", 2), ("fpf+sgd", 2)]


def settings(way: str, seed: int, arguments: argparse.Namespace, precision: str) -> Settings:
    """Return the settings of one run."""
    method, given = WAYS[way]
    common = {
        "seed": seed, "buffer": 500, "epochs": arguments.epochs, "device": arguments.device, "precision": precision,
    }  # fmt: skip
    return resolve(arguments.stream, method, given | common)[0]


def pack(runs: list[Settings], stream: Stream, lanes: int) -> dict[str, Any]:
    """Train all runs in lanes; return how long they take together and how each ended."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    records: dict[int, Any] = {}
    for number, event in interleave([lambda each=each: build_run(each, stream) for each in runs], lanes):  # type: ignore[misc]
        if isinstance(event, Ended):
            records[number] = make_record(runs[number], {}, event.result)
    seconds = time.perf_counter() - began
    rows = [
        {
            "label": records[n].label, "seed": runs[n].seed, "id": records[n].id, "accuracy": records[n].accuracy,
            "steps": records[n].steps, "finetunings": len(records[n].finetunings), "chosen": records[n].chosen,
            "tflops": round(sum(records[n].flops.values()) / 1e12, 1), "seconds": records[n].seconds,
        }
        for n in range(len(runs))
    ]  # fmt: skip
    outcome: dict[str, Any] = {"lanes": lanes, "seconds": round(seconds, 2), "runs": rows}
    if torch.cuda.is_available():
        outcome["megabytes_per_lane"] = round(torch.cuda.max_memory_reserved() / lanes / 2**20)
    outcome["settings"] = {each.label: each.to_dict() for each in runs}
    return outcome


def summary(name: str, outcome: dict[str, Any]) -> str:
    """Return a line on the outcome of a pack."""
    by_label: dict[str, list[float]] = {}
    for run in outcome["runs"]:
        by_label.setdefault(run["label"], []).append(run["accuracy"])
    shown = ", ".join(
        f"{label} {mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
        for label, values in by_label.items()
    )
    return f"{name}: {outcome['seconds']} s, {len(outcome['runs'])} runs in {outcome['lanes']} lanes; {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["twelve", "packs", "precision"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--stream", default="seq-cifar10")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bf16 = "bf16" if arguments.device == "cuda" else "fp32"
    parts: dict[str, list[Settings]] = {}
    if arguments.part == "twelve":
        parts["twelve"] = [settings(way, seed, arguments, bf16) for way, n in TWELVE for seed in range(n)]
    elif arguments.part == "packs":
        for way in ("k-fpf-ce", "er", "derpp"):
            parts[f"pack {way}"] = [settings(way, seed, arguments, bf16) for seed in range(arguments.lanes)]
    else:
        ways = ("k-fpf-ce", "er")
        for precision in ("bf16", "tf32"):
            runs = [settings(way, seed, arguments, precision) for way in ways for seed in range(arguments.seeds)]
            parts[f"{precision}, {arguments.epochs} epochs"] = runs
    results: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())["parts"]
    stream = build_stream(next(iter(parts.values()))[0]).to(arguments.device)
    left = {name: runs for name, runs in parts.items() if name not in results}
    if arguments.part == "packs" and left:
        short = replace(stream, tasks=stream.tasks[:2])
        pack([replace(runs[0], epochs=1) for runs in left.values()], short, arguments.lanes)
    for name, runs in left.items():
        results[name] = pack(runs, stream, arguments.lanes) | provenance(arguments.device)
        print(summary(name, results[name]), flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"parts": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
