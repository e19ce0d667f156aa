"""Must images be centred? How a network with batch norm is evaluated while it trains on all classes at once.

    python benchmarks/centring.py [--width 12] [--lr 0.03] [--marks 20] [--out FILE]

An epoch over a part of OrganAMNIST and of PathMNIST, two over PACS: images as they are (0 to 1), as (x - ½) / ½, and by
the mean and deviation of their own channels. At regular marks the same weights classify up to 1,000 images of the
validation split twice: with the running statistics of batch norm, as an evaluation does, and with those of each batch
of 250. Where the two differ, the running statistics do not fit the weights. ResNet-18, narrow so that a CPU does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

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

Case = tuple[Callable[[], Stream], Callable[..., nn.Module], int, int]  # of every how many images, how many epochs
CASES: dict[str, Case] = {
    "seq-organamnist": (streams.seq_organamnist, networks.resnet18, 2, 1),
    "seq-pathmnist": (streams.seq_pathmnist, networks.resnet18, 4, 1),
    "seq-pacs": (streams.seq_pacs, networks.resnet18_imagenet, 1, 2),
}


def smaller(stream: Stream, part: int) -> Stream:
    tasks = [replace(task, train=Split(task.train.x[::part], task.train.y[::part])) for task in stream.tasks]
    return replace(stream, tasks=tuple(tasks))


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor, *, running: bool) -> float:
    """In percent; the network is left as it was."""
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.train(not running)
    right = sum(int((network(a).argmax(1) == b).sum()) for a, b in zip(x.split(250), y.split(250), strict=True))
    network.load_state_dict(state)
    network.train()
    return 100 * right / len(x)


def prepared(stream: Stream, way: str) -> Stream:
    if way == "as they are":
        return replace(stream, mean=(), std=())
    if way == "by a half":
        half = (0.5,) * stream.shape[0]
        return replace(stream, mean=half, std=half)
    counts = torch.zeros(stream.shape[0], 256, dtype=torch.float64)
    for task in stream.tasks:
        for channel, own in enumerate(task.train.x.unbind(1)):
            counts[channel] += torch.bincount(own.flatten().int(), minlength=256)
    shares, levels = counts / counts.sum(1, keepdim=True), torch.linspace(0, 1, 256, dtype=torch.float64)
    middle = shares @ levels
    spread = (shares @ levels.square() - middle.square()).sqrt()
    return replace(stream, mean=tuple(middle.tolist()), std=tuple(spread.tolist()))


def measure(name: str, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    read, build, part, epochs = CASES[name]
    stream = prepared(smaller(read(), part).validation(), way)
    x, y = torch.cat([task.test.x for task in stream.tasks]), torch.cat([task.test.y for task in stream.tasks])
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1000]
    x, y = Preparation(stream, torch.device("cpu")).plain(x[some]), y[some]
    network = with_seed(lambda: build(stream.classes, stream.shape[0], width=arguments.width), 0)
    run = train(stream, Joint(), network, epochs=epochs, batch=32, lr=arguments.lr)
    steps = epochs * sum(len(task.train) for task in stream.tasks) // 32
    wanted = {10 * round(steps * (mark + 1) / arguments.marks / 10) for mark in range(arguments.marks)}
    found = [
        (accuracy(network, x, y, running=True), accuracy(network, x, y, running=False))
        for event in run
        if isinstance(event, Stepped) and event.step in wanted
    ]
    late = found[len(found) // 2 :]
    running, batches = ([round(pair[i], 1) for pair in late] for i in (0, 1))
    print(name, way, running, batches, flush=True)
    return {
        "stream": name, "prepared": way, "mean": [round(value, 4) for value in stream.mean],
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
    ways = ("as they are", "by a half", "by their channels")
    rows = [measure(name, way, arguments) for name in CASES for way in ways]
    settings = {"width": arguments.width, "lr": arguments.lr}
    publish({**provenance(), **settings, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
