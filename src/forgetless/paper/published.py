"""Published numbers to compare with, as data: every table of the paper, and some of the DER authors'. Imports no torch.

``table`` is ``table1``, ``mlp-vgg``, ``fpf-all``, ``anytime``, ``many-epochs`` or ``freeze`` of the paper, or
``der-authors``. ``label`` is what ``Settings.label`` calls the run.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Target:
    table: str
    stream: str
    network: str
    epochs: int  # a task
    buffer: int | None  # None: the table does not say, or none is used
    label: str
    freeze: str  # the group frozen after the first task, or ""
    metric: str  # accuracy (percent), accuracy_after_task_1 …, finetune_tflops, train_tflops
    mean: float
    std: float | None


@cache
def targets() -> tuple[Target, ...]:
    """All of them, in the order of the tables."""
    text = files("forgetless").joinpath("targets.csv").read_text(encoding="utf-8")
    return tuple(
        Target(
            row["table"], row["stream"], row["network"], int(row["epochs"]),
            int(row["buffer"]) if row["buffer"] else None, row["label"], row["freeze"], row["metric"],
            float(row["mean"]), float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip


def find(table: str, stream: str, metric: str = "accuracy", buffer: int | None = None) -> dict[str, Target]:
    """The rows of one column by label; of runs without a buffer too."""
    return {
        target.label: target
        for target in targets()
        if (target.table, target.stream, target.metric) == (table, stream, metric) and target.buffer in (None, buffer)
    }
