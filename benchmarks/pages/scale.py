"""Compute the values of docs/scale.md: what FPF costs a large language model, and larger ones."""

from __future__ import annotations

from typing import Any

from forgetless.repair.buffer import HELD_OUT
from forgetless.repair.recollection import TOP
from pages.rows import benchmark_record
from pages.template import markdown_table

MODELS = (("8 billion", 8e9, (8, 16)), ("70 billion", 70e9, (16, 32, 64)))  # name, parameters, numbers of GPUs
STATE = 16  # bytes per parameter of training: weights, gradients and two averages of AdamW in float32
COPY = 4  # bytes per parameter of one copy of the weights, or of the gradients of a repair
MOST_COPIES = 4  # in host memory during ``finish()``: for the scores, the start, the end and the present trial
AVERAGES = 8  # bytes per parameter of the two averages of Adam
PREDICTED = 6  # bytes per token that a prediction keeps: its id and its logarithm
CAPACITY = 200  # sequences in the buffer of benchmarks/large.py, which needs transformers
GIB = 2**30


def values() -> dict[str, Any]:
    """Return the values of the template."""
    record = benchmark_record("large-h200.json")
    return {
        "record": record,
        "billions": record["parameters"] / 1e9,
        "budget": record["budget"],
        "schedule": record["schedule"],
        "repair": record["repair"],
        "megabytes_kept": record["budget"]["kept_bytes_per_parameter"] * record["parameters"] / 1e6,
        "observe_ms": record["budget"]["step_with_fpf_ms"] - record["budget"]["step_ms"],
        "tokens": record["batch"] * record["length"],
        "repair_steps": record["repair"]["seconds"] / (record["budget"]["step_ms"] / 1000),
        "stored": record["repair"]["held_out"] * HELD_OUT,
        "repair_gib": (COPY + AVERAGES) * record["parameters"] / GIB,
        "capacity": CAPACITY,
        "top": TOP,
        "prediction_megabytes": PREDICTED * TOP * CAPACITY * record["length"] / 1e6,
        "larger": larger_models(record),
    }


def larger_models(record: dict[str, Any]) -> str:
    """Return a table of memory and times for larger models, split evenly over GPUs."""
    rows = []
    for name, parameters, counts in MODELS:
        for gpus in counts:
            share = parameters / gpus
            scale = share / record["parameters"]
            rows.append(
                [
                    name,
                    str(gpus),
                    f"{STATE * share / GIB:.0f} GiB",
                    f"{COPY * share / GIB:.1f} to {(COPY + AVERAGES) * share / GIB:.1f} GiB",
                    f"{COPY * share / GIB:.1f} GiB",
                    f"{MOST_COPIES * COPY * share / GIB:.0f} GiB",
                    f"{record['budget']['snapshot_seconds'] * scale:.1f} s",
                    f"{record['repair']['seconds'] * scale:.0f} s",
                ]
            )
    head = (
        "parameters", "GPUs", "training, per GPU", "a repair adds, per GPU", "host memory per GPU", "in `finish()`",
        "a copy takes", "a repair takes",
    )  # fmt: skip
    return markdown_table(head, rows)
