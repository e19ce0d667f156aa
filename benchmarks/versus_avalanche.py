"""Measure one epoch of ER on Seq-MNIST with forgetless, Avalanche's Replay and a plain DataLoader loop.

    python benchmarks/versus_avalanche.py --batch 10 --avalanche PYTHON [--threads 1] [--out FILE]

PYTHON is the interpreter of an environment with avalanche-lib, which needs torchvision. All three train the same MLP
with SGD, a buffer of 500 and one replayed example per new one, on ``--threads`` threads. The time covers only training:
the data is in memory before the clock starts, and nothing is evaluated. ``products`` are the eight matrix products of
such a step and nothing else; no training can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))


def images(root: str) -> list[tuple[Any, Any]]:
    """Return the images and labels of each of the five tasks, as bytes."""
    import gzip

    import numpy
    import torch

    folder = Path(root) / "MNIST" / "raw"
    x = numpy.frombuffer(gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())[16:], numpy.uint8)
    y = numpy.frombuffer(gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes())[8:], numpy.uint8)
    inputs = torch.from_numpy(x.reshape(-1, 1, 28, 28).copy())
    labels = torch.from_numpy(y.copy()).long()
    tasks = [(labels // 2 == task).nonzero()[:, 0] for task in range(5)]
    return [(inputs[rows], labels[rows]) for rows in tasks]


def forgetless_seconds(root: str, batch: int) -> tuple[float, int]:
    """Time forgetless; return the seconds and the steps."""
    import torch

    from forgetless import networks, train
    from forgetless.data.stream import Split, Stream, Task
    from forgetless.methods.er import ER
    from forgetless.training.events import Ended

    torch.set_num_threads(THREADS)
    tasks = tuple(Task(Split(x, y), Split(x[:10], y[:10]), (2 * t, 2 * t + 1)) for t, (x, y) in enumerate(images(root)))
    stream = Stream("seq-mnist", tasks, 10, "class")
    short = Stream("short", tuple(Task(t.test, t.test, t.classes) for t in tasks), 10, "class")
    list(train(short, ER(), networks.mlp(10), batch=10, lr=0.1, buffer=500))  # imports what the first step needs
    for event in train(stream, ER(), networks.mlp(10), batch=batch, lr=0.1, buffer=500):
        if isinstance(event, Ended):
            return event.result.seconds["train"], event.result.steps
    raise AssertionError("a run ends with Ended")


def loader_seconds(root: str, batch: int) -> tuple[float, int]:
    """Time plain PyTorch: a DataLoader, a list as the reservoir, and a Python loop that fills it."""
    import random

    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    from forgetless import networks

    torch.set_num_threads(THREADS)
    model = networks.mlp(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reservoir: list[tuple[Any, Any]] = []
    seen = steps = 0
    tasks = [TensorDataset(x.float() / 255, y) for x, y in images(root)]
    start = time.perf_counter()
    for task in tasks:
        for x, y in DataLoader(task, batch_size=batch, shuffle=True):
            inputs, labels = x, y
            if reservoir:
                drawn = random.sample(reservoir, min(batch, len(reservoir)))
                inputs = torch.cat([x, torch.stack([image for image, _ in drawn])])
                labels = torch.cat([y, torch.stack([label for _, label in drawn])])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            for image, label in zip(x, y, strict=True):
                if seen < 500:
                    reservoir.append((image, label))
                elif (slot := random.randint(0, seen)) < 500:
                    reservoir[slot] = (image, label)
                seen += 1
            steps += 1
    return time.perf_counter() - start, steps


def avalanche_seconds(root: str, batch: int) -> tuple[float, int]:
    """Time Avalanche's Replay."""
    import torch
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.templates import SupervisedTemplate

    torch.set_num_threads(THREADS)
    tasks = [(x.float() / 255, y) for x, y in images(root)]
    benchmark = tensors_benchmark(
        train_tensors=tasks, test_tensors=[(x[:10], y[:10]) for x, y in tasks], task_labels=[0] * 5
    )
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 100), torch.nn.ReLU(),
        torch.nn.Linear(100, 10),
    )  # fmt: skip
    replay = ReplayPlugin(
        mem_size=500, batch_size=batch, batch_size_mem=batch, storage_policy=ReservoirSamplingBuffer(500)
    )
    strategy = SupervisedTemplate(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=batch,
        train_epochs=1,
        plugins=[replay],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    steps = 0
    start = time.perf_counter()
    for experience in benchmark.train_stream:
        strategy.train(experience)
        steps += -(-len(experience.dataset) // batch)
    return time.perf_counter() - start, steps


def products_seconds(root: str, batch: int) -> tuple[float, int]:
    """Time the matrix products of a step alone."""
    import torch

    torch.set_num_threads(THREADS)
    if platform.machine() == "aarch64":
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # faster without oneDNN on Arm
    steps, sizes = 2000, (784, 100, 100, 10)
    inputs = [torch.rand(2 * batch, size) for size in sizes]
    weights = [torch.rand(high, low) for low, high in pairwise(sizes)]
    start = time.perf_counter()
    for _ in range(steps):
        for x, gradient, weight in zip(inputs, inputs[1:], weights, strict=False):
            x.mm(weight.t())
            gradient.t().mm(x)
            if x is not inputs[0]:
                gradient.mm(weight)
    return time.perf_counter() - start, steps


WAYS = {
    "forgetless": forgetless_seconds,
    "loader": loader_seconds,
    "avalanche": avalanche_seconds,
    "products": products_seconds,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--avalanche", help="a Python interpreter with avalanche-lib")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root = os.environ["FORGETLESS_DATA"]
    if arguments.only:
        seconds, steps = WAYS[arguments.only](root, arguments.batch)
        import torch

        print(json.dumps({"milliseconds": round(1000 * seconds / steps, 4), "torch": torch.__version__}))
        return
    from provenance import provenance, publish

    milliseconds: dict[str, list[float]] = {}
    torch_versions: dict[str, str] = {}
    for _ in range(arguments.repeat):
        for way in WAYS:
            python = arguments.avalanche if way == "avalanche" else sys.executable
            if python is None:
                continue
            call = [python, __file__, "--only", way, "--batch", str(arguments.batch)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
            done = subprocess.run(call, check=True, capture_output=True, text=True, env=environment)
            line = done.stdout.splitlines()[-1]
            milliseconds.setdefault(way, []).append(json.loads(line)["milliseconds"])
            torch_versions[way] = json.loads(line)["torch"]
    best = {way: min(values) for way, values in milliseconds.items()}
    result = {
        "batch": arguments.batch,
        "milliseconds_per_step": best,
        "times_slower_than_forgetless": {way: round(value / best["forgetless"], 2) for way, value in best.items()},
        "all": milliseconds,
        "avalanche_torch": torch_versions.get("avalanche"),
    }
    publish(result | provenance() | {"threads": arguments.threads}, arguments.out)


if __name__ == "__main__":
    main()
