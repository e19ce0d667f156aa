"""Seq-CIFAR-10 from end to end on one GPU: whole runs in lanes, wall-clock and accuracy.

    python benchmarks/comparison.py twelve --out FILE     # six k-FPF, two ER, two DER++, two SGD + FPF, in one process
    python benchmarks/comparison.py packs --out FILE      # eight k-FPF, then eight ER, then eight DER++
    python benchmarks/comparison.py precision --out FILE  # five k-FPF and five ER in bf16, and as many in tf32

Seconds are of everything from the first run's start to the last one's end, evaluation, capture and compilation of
kernels included; reading the data set is not. The packs are compared with each other, so before them one short run of
each compiles the kernels. Written as it goes: a part that is in FILE already is not done again.
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
from forgetless.experiments.lanes import interleave
from forgetless.experiments.run import build_stream, make_record, start
from forgetless.experiments.settings import Settings, resolve
from forgetless.training.events import Ended
from provenance import provenance

# Given, not from the presets, which are searched for anew: the rates are for these numbers of steps.
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
    method, given = WAYS[way]
    common = {
        "seed": seed, "buffer": 500, "epochs": arguments.epochs, "device": arguments.device, "precision": precision,
    }  # fmt: skip
    return resolve(arguments.stream, method, given | common)[0]


def pack(runs: list[Settings], stream: Stream, lanes: int) -> dict[str, Any]:
    """All these runs, and how long they take together."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    found: dict[int, Any] = {}
    for number, event in interleave([lambda one=one: start(one, stream) for one in runs], lanes):  # type: ignore[misc]
        if isinstance(event, Ended):
            found[number] = make_record(runs[number], {}, event.result)
    seconds = time.perf_counter() - began
    rows = [
        {
            "label": found[n].label, "seed": runs[n].seed, "id": found[n].id, "accuracy": found[n].accuracy,
            "steps": found[n].steps, "finetunings": len(found[n].finetunings), "chosen": found[n].chosen,
            "tflops": round(sum(found[n].flops.values()) / 1e12, 1), "seconds": found[n].seconds,
        }
        for n in range(len(runs))
    ]  # fmt: skip
    made: dict[str, Any] = {"lanes": lanes, "seconds": round(seconds, 2), "runs": rows}
    if torch.cuda.is_available():
        made["megabytes_per_lane"] = round(torch.cuda.max_memory_reserved() / lanes / 2**20)
    made["settings"] = {one.label: one.to_dict() for one in runs}
    return made


def summary(name: str, made: dict[str, Any]) -> str:
    by_label: dict[str, list[float]] = {}
    for run in made["runs"]:
        by_label.setdefault(run["label"], []).append(run["accuracy"])
    shown = ", ".join(
        f"{label} {mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
        for label, values in by_label.items()
    )
    return f"{name}: {made['seconds']} s, {len(made['runs'])} runs in {made['lanes']} lanes; {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["twelve", "packs", "precision"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--stream", default="seq-cifar10")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bf16 = "bf16" if arguments.device == "cuda" else "fp32"
    parts: dict[str, list[Settings]] = {}
    if arguments.what == "twelve":
        parts["twelve"] = [settings(way, seed, arguments, bf16) for way, n in TWELVE for seed in range(n)]
    elif arguments.what == "packs":
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
    if arguments.what == "packs" and left:
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
