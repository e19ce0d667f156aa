"""Measure whether images must be centred: batch norm's statistics while a network trains on all classes at once.

    python benchmarks/centring.py [--width 12] [--lr 0.03] [--marks 20] [--out FILE]

The network trains one epoch on a part of OrganAMNIST and of PathMNIST, and two on PACS. The images are left as they are
(0 to 1), scaled as (x - ½) / ½, or normalised by the mean and deviation of their channels. At regular marks the same
weights classify up to 1,000 images of the validation split twice: with the running statistics of batch norm, as an
evaluation does, and with the statistics of each batch of 250. Where the two differ, the running statistics do not fit
the weights. The ResNet-18 is narrow, so that a CPU is enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forgetless import networks, train
from forgetless.data import benchmarks as streams
from forgetless.data.augment import Preparation
from forgetless.data.stream import Split, Stream
from forgetless.methods.joint import Joint
from forgetless.networks.seed import with_seed
from forgetless.training.events import Stepped
from provenance import provenance, publish


class Case(NamedTuple):
    """A stream of which every ``stride``-th image is used, its network, and the epochs."""

    read: Callable[[], Stream]
    build: Callable[..., nn.Module]
    stride: int
    epochs: int


CASES = {
    "seq-organamnist": Case(streams.seq_organamnist, networks.resnet18, 2, 1),
    "seq-pathmnist": Case(streams.seq_pathmnist, networks.resnet18, 4, 1),
    "seq-pacs": Case(streams.seq_pacs, networks.resnet18_imagenet, 1, 2),
}


def smaller(stream: Stream, stride: int) -> Stream:
    """Return the stream with every ``stride``-th training image."""
    tasks = [replace(task, train=Split(task.train.x[::stride], task.train.y[::stride])) for task in stream.tasks]
    return replace(stream, tasks=tuple(tasks))


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor, *, running: bool) -> float:
    """Return the accuracy in percent; the network is left unchanged."""
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.train(not running)
    correct = sum(int((network(a).argmax(1) == b).sum()) for a, b in zip(x.split(250), y.split(250), strict=True))
    network.load_state_dict(state)
    network.train()
    return 100 * correct / len(x)


def prepared(stream: Stream, preparation: str) -> Stream:
    """Return the stream with another normalisation."""
    if preparation == "as they are":
        return replace(stream, mean=(), std=())
    if preparation == "by a half":
        half = (0.5,) * stream.shape[0]
        return replace(stream, mean=half, std=half)
    counts = torch.zeros(stream.shape[0], 256, dtype=torch.float64)
    for task in stream.tasks:
        for channel, pixels in enumerate(task.train.x.unbind(1)):
            counts[channel] += torch.bincount(pixels.flatten().int(), minlength=256)
    shares, levels = counts / counts.sum(1, keepdim=True), torch.linspace(0, 1, 256, dtype=torch.float64)
    means = shares @ levels
    deviations = (shares @ levels.square() - means.square()).sqrt()
    return replace(stream, mean=tuple(means.tolist()), std=tuple(deviations.tolist()))


def measure(name: str, preparation: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on a stream and return both accuracies over the second half of the marks."""
    case = CASES[name]
    stream = prepared(smaller(case.read(), case.stride).validation(), preparation)
    x, y = torch.cat([task.test.x for task in stream.tasks]), torch.cat([task.test.y for task in stream.tasks])
    sample = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1000]
    x, y = Preparation(stream, torch.device("cpu")).plain(x[sample]), y[sample]
    network = with_seed(lambda: case.build(stream.classes, stream.shape[0], width=arguments.width), 0)
    run = train(stream, Joint(), network, epochs=case.epochs, batch=32, lr=arguments.lr)
    steps = case.epochs * sum(len(task.train) for task in stream.tasks) // 32
    marks = {10 * round(steps * (mark + 1) / arguments.marks / 10) for mark in range(arguments.marks)}
    pairs = [
        (accuracy(network, x, y, running=True), accuracy(network, x, y, running=False))
        for event in run
        if isinstance(event, Stepped) and event.step in marks
    ]
    late = pairs[len(pairs) // 2 :]
    running, batches = ([round(pair[i], 1) for pair in late] for i in (0, 1))
    print(name, preparation, running, batches, flush=True)
    return {
        "stream": name, "prepared": preparation, "mean": [round(value, 4) for value in stream.mean],
        "std": [round(value, 4) for value in stream.std], "steps": steps, "running": running, "batches": batches,
        "running_mean": round(mean(running), 1), "batches_mean": round(mean(batches), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--marks", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    preparations = ("as they are", "by a half", "by their channels")
    rows = [measure(name, preparation, arguments) for name in CASES for preparation in preparations]
    settings = {"width": arguments.width, "lr": arguments.lr}
    publish({**provenance(), **settings, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
