"""The published numbers: every table of the paper, and some of the authors of DER and CLS-ER. Imports no torch.

Those of CLS-ER are in the README of github.com/NeurAI-Lab/CLS-ER.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Target:
    """One published number."""

    table: str  # of the paper: table1, mlp-vgg, fpf-all, anytime, many-epochs, freeze; or der-authors, cls-er-authors
    stream: str
    network: str
    epochs: int  # per task
    buffer: int | None  # None: the table does not state it, or the method has no buffer
    label: str  # the ``Settings.label`` of the run
    freeze: str  # the group frozen after the first task, or ""
    metric: str  # accuracy (percent), accuracy_after_task_1 …, finetune_tflops, train_tflops
    mean: float
    std: float | None


@cache
def targets() -> tuple[Target, ...]:
    """Return all published numbers, in the order of the tables."""
    text = files("forgetless.paper").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Target(
            row["table"], row["stream"], row["network"], int(row["epochs"]),
            int(row["buffer"]) if row["buffer"] else None, row["label"], row["freeze"], row["metric"],
            float(row["mean"]), float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip


def find(table: str, stream: str, metric: str = "accuracy", buffer: int | None = None) -> dict[str, Target]:
    """Return the numbers of one column by label, including methods without a buffer."""
    return {
        target.label: target
        for target in targets()
        if (target.table, target.stream, target.metric) == (table, stream, metric) and target.buffer in (None, buffer)
    }
