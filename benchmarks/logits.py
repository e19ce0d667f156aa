"""Of when should the logits be that k-FPF-KD distils from? The same runs with logits of three times.

    python benchmarks/logits.py [--seeds 5] [--epochs 1] [--out FILE]

Those of the step at which an image entered the buffer, as in the paper; of the end of the image's task; of the end of
the last finetuning. Around plain SGD and ``masked``, beside k-FPF-CE. Seq-MNIST, its validation split, the MLP, and the
settings that were searched for (forgetless/presets.py); a process for each core.
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
from forgetless.experiments.presets import SEARCHED
from forgetless.methods.learner import Batch, Learner
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended, Repaired, TaskEnded
from provenance import provenance, publish

ENTERED, TASK, FINETUNED = "when it entered", "at the end of its task", "after the last finetuning"
# Method, λ, of when the logits are.
RUNS = [
    (method, kd, when)
    for method in ("sgd", "masked")
    for kd in (0.0, 0.1, 0.5)
    for when in ((ENTERED, TASK, FINETUNED) if kd else (ENTERED,))
]


@dataclass
class Watched(Method):
    """A method whose learner, and so its buffer, can be looked into."""

    inner: Method
    learner: Learner | None = field(default=None, init=False)

    def begin(self, learner: Learner) -> None:
        self.learner = learner

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inner.step(learner, batch)

    @torch.no_grad()
    def renew(self, classes: tuple[int, ...]) -> None:
        """Store what the network gives now, in evaluation mode, with the buffer's images of these classes."""
        assert self.learner is not None
        learner, buffer = self.learner, self.learner.buffer
        rows = torch.isin(buffer["y"], torch.tensor(classes)).nonzero()[:, 0]
        was, found = learner.network.training, []
        learner.network.eval()
        for part in rows.split(100):
            found.append(learner.forward(learner.plain(buffer["x"][part])))
        learner.network.train(was)
        buffer["logits"][rows] = torch.cat(found)


def measure(run: tuple[str, float, str], seed: int, epochs: int) -> float:
    torch.set_num_threads(1)
    method, kd, when = run
    stream = streams.seq_mnist().validation()
    watched = Watched(catalogue.load("method", method)())
    network = with_seed(lambda: networks.mlp(stream.classes), seed)
    own = SEARCHED["seq-mnist"]["k-fpf+sgd"]
    finetune = Finetune.k_fpf(own["every"], lr=own["ft_lr"], distill=kd)
    settings = {"batch": own["batch"], "lr": own["lr"], "epochs": epochs, "seed": seed}
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
        for (method, kd, when), own in zip(RUNS, waiting, strict=True):
            accuracies = [round(one.result(), 2) for one in own]
            rows.append({"method": method, "kd": kd, "logits": when if kd else None, "accuracies": accuracies})
            print(rows[-1], flush=True)
    publish({**provenance(), "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
