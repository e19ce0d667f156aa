"""Compute the values of docs/scale.md: what FPF costs a large language model, and larger ones."""

from __future__ import annotations

from statistics import mean
from typing import Any

from forgetless.memory.buffer import HELD_OUT
from forgetless.repair.account import RECALL
from forgetless.repair.recollection import TOP
from forgetless.repair.settings import LANGUAGE_BUDGET
from pages.rows import benchmark_record
from pages.template import markdown_table

MODELS = (("8 billion", 8e9), ("70 billion", 70e9))  # name and parameters
GPUS = (8, 16, 32, 64)
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
    budget = record["budget"]
    return {
        "record": record,
        "billions": record["parameters"] / 1e9,
        "budget": budget,
        "schedule": record["schedule"],
        "repair": record["repair"],
        "megabytes_kept": budget["kept_bytes_per_parameter"] * record["parameters"] / 1e6,
        "observe_ms": budget["step_with_fpf_ms"] - budget["step_ms"],
        "tokens": record["batch"] * record["length"],
        "repair_steps": record["repair"]["seconds"] / (budget["step_ms"] / 1000),
        "mean_percent": 100 * (mean(budget["observed_blocks_ms"]) / mean(budget["plain_blocks_ms"]) - 1),
        "longest_block_ms": (max(budget["observed_blocks_ms"]) - budget["step_with_fpf_ms"]) * record["steps"],
        "first_prediction": CAPACITY / LANGUAGE_BUDGET,  # predictions may take a third, and each costs a third
        "prediction_percent": 100 * RECALL * LANGUAGE_BUDGET,
        "rule_gib": STATE * record["parameters"] / GIB,
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
    for name, parameters in MODELS:
        for gpus in GPUS:
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
