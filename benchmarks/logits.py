"""Measure k-FPF-KD by the time at which the distilled logits are stored.

    python benchmarks/logits.py [--seeds 5] [--epochs 1] [--out FILE]

The logits are those of the step at which an image entered the buffer, as in the paper; of the end of the image's task;
or of the end of the last finetuning. The runs are around plain SGD and ``masked``, compared with k-FPF-CE, on the
validation split of Seq-MNIST with the MLP and the searched settings (experiments/presets.toml). One process per core.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from forgetless import Finetune, Method, networks, train
from forgetless.config import catalogue
from forgetless.data import benchmarks as streams
from forgetless.experiments.presets import preset_table
from forgetless.methods.learner import Batch, Learner
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended, Repaired, TaskEnded
from provenance import provenance, publish

ENTERED, TASK, FINETUNED = "when it entered", "at the end of its task", "after the last finetuning"
RUNS = [
    (method, kd, when)
    for method in ("sgd", "masked")
    for kd in (0.0, 0.1, 0.5)
    for when in ((ENTERED, TASK, FINETUNED) if kd else (ENTERED,))
]


@dataclass
class Watched(Method):
    """A method that gives access to its learner, and thereby to the buffer."""

    inner: Method
    learner: Learner | None = field(default=None, init=False)

    def begin(self, learner: Learner) -> None:
        self.learner = learner

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inner.step(learner, batch)

    @torch.no_grad()
    def renew(self, classes: tuple[int, ...]) -> None:
        """Replace the stored logits of these classes by the network's present ones, in evaluation mode."""
        assert self.learner is not None
        learner, buffer = self.learner, self.learner.buffer
        rows = torch.isin(buffer["y"], torch.tensor(classes)).nonzero()[:, 0]
        was_training, parts = learner.network.training, []
        learner.network.eval()
        for part in rows.split(100):
            parts.append(learner.forward(learner.plain(buffer["x"][part])))
        learner.network.train(was_training)
        buffer["logits"][rows] = torch.cat(parts)


def measure(run: tuple[str, float, str], seed: int, epochs: int) -> float:
    """Return the accuracy of a run: its method, λ, and the time of its logits."""
    torch.set_num_threads(1)
    method, kd, when = run
    stream = streams.seq_mnist().validation()
    watched = Watched(catalogue.load("method", method)())
    network = with_seed(lambda: networks.mlp(stream.classes), seed)
    searched = preset_table("searched")["seq-mnist"]["k-fpf+sgd"]
    finetune = Finetune.k_fpf(searched["every"], lr=searched["ft_lr"], distill=kd)
    settings = {"batch": searched["batch"], "lr": searched["lr"], "epochs": epochs, "seed": seed}
    for event in train(stream, watched, network, buffer=500, finetune=finetune, **settings):
        if isinstance(event, Repaired) and kd and when == FINETUNED:
            watched.renew(tuple(range(stream.classes)))
        elif isinstance(event, TaskEnded) and kd and when == TASK:
            watched.renew(stream.tasks[event.task - 1].classes)
        elif isinstance(event, Ended):
            return mean(event.result.accuracy_matrix[-1])
    raise AssertionError("a run ends")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            [pool.submit(measure, run, seed, arguments.epochs) for seed in range(arguments.seeds)] for run in RUNS
        ]
        for (method, kd, when), futures in zip(RUNS, waiting, strict=True):
            accuracies = [round(future.result(), 2) for future in futures]
            rows.append({"method": method, "kd": kd, "logits": when if kd else None, "accuracies": accuracies})
            print(rows[-1], flush=True)
    publish({**provenance(), "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
