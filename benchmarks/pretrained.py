"""Measure the transformers of ``examples/``: plain finetuning, FPF and k-FPF, in full and with LoRA adapters.

python benchmarks/pretrained.py [--seeds 3] [--out FILE]
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from provenance import parse_arguments, provenance, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import transformers_text
import transformers_vit

EXAMPLES = {"ViT, digits": transformers_vit, "BERT, docstrings": transformers_text}


def spread(values: list[float]) -> dict[str, Any]:
    """Return mean, standard deviation and values, rounded."""
    return {
        "mean": round(mean(values), 2),
        "std": round(stdev(values), 2),
        "values": [round(value, 2) for value in values],
    }


def measure_example(name: str, seeds: range) -> dict[str, Any]:
    """Return the settings and the rows of an example."""
    torch.set_num_threads(1)
    example: Any = EXAMPLES[name]
    return {
        "rates": example.RATES,
        "capacity": example.CAPACITY,
        "epochs": example.EPOCHS,
        "batch": example.BATCH,
        "full": {way: measure(example, way, False, seeds) for way in example.WAYS["full"]},
        "LoRA": {way: measure(example, way, True, seeds) for way in example.WAYS["LoRA"]},
    }


def measure(example: Any, way: str, adapters: bool, seeds: range) -> dict[str, Any]:
    """Return the accuracies of one way of training over the seeds, and S_g and the choice of each group."""
    start = time.perf_counter()
    outcomes = [example.run(way, seed, adapters) for seed in seeds]
    row: dict[str, Any] = {
        "before": spread([outcome.before for outcome in outcomes]),
        "after": spread([outcome.after for outcome in outcomes]),
        "trained": round(outcomes[0].trained, 5),
        "repaired": round(mean(outcome.repaired for outcome in outcomes), 5),
        "seconds": round((time.perf_counter() - start) / len(seeds), 1),
        "settings": example.WAYS["LoRA" if adapters else "full"][way],
    }
    if outcomes[0].fpf is not None:
        profiles = [outcome.fpf.profile() for outcome in outcomes]
        row["finetunings"] = [outcome.fpf.finetunings for outcome in outcomes]
        row["groups"] = {
            group.name: {
                "sensitivity": [p.groups[i].sensitivity and round(p.groups[i].sensitivity, 3) for p in profiles],
                "parameters": group.parameters,
                "share": round(group.share, 5),
                "chosen": sum(p.groups[i].chosen for p in profiles),
            }
            for i, group in enumerate(profiles[0].groups)
        }
    print(f"{example.__name__} {'LoRA' if adapters else 'full'} {way}: {row['after']}", file=sys.stderr, flush=True)
    return row


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=3)
    torch.set_num_threads(1)
    seeds = range(arguments.seeds)
    with ProcessPoolExecutor(len(EXAMPLES)) as pool:
        rows = dict(zip(EXAMPLES, pool.map(partial(measure_example, seeds=seeds), EXAMPLES), strict=True))
    libraries = {name: version(name) for name in ("transformers", "peft")}
    publish({"seeds": arguments.seeds, "examples": rows} | provenance() | libraries, arguments.out)


if __name__ == "__main__":
    main()
