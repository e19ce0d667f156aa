"""What may a crop find over the edge? The first task of Seq-PathMNIST by plain SGD, tested while it trains.

    python benchmarks/edges.py [--width 12] [--lr 0.03] [--out FILE]

Images as they are, cropped with black over the edge, and cropped with the image mirrored there; the last two mirrored
left to right too. After the first third of two epochs over half of the images, the validation split is classified every
50 steps, with the running statistics of batch norm and with those of each batch. ResNet-18, narrow so that a CPU does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from centring import accuracy, smaller
from forgetless import networks, train
from forgetless.data import benchmarks as streams
from forgetless.data.augment import Preparation
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import Stepped
from provenance import provenance, publish

EPOCHS = 2
WAYS: dict[str, dict[str, Any]] = {
    "as they are": {"pad": 0, "flip": False},
    "cropped, black over the edge": {"pad": 4, "flip": True},
    "cropped, mirrored at the edge": {"pad": 4, "flip": True, "mirror": True},
}


def measure(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    whole = replace(streams.seq_pathmnist(), **{"mirror": False, **WAYS[way]})
    stream = smaller(replace(whole, tasks=whole.tasks[:1]), 2).validation()
    held = stream.tasks[0].test
    x = Preparation(stream, torch.device("cpu")).plain(held.x)
    network = with_seed(lambda: networks.resnet18(stream.classes, 3, width=arguments.width), 0)
    first = EPOCHS * len(stream.tasks[0].train) // 32 // 3
    found = [
        (accuracy(network, x, held.y, running=True), accuracy(network, x, held.y, running=False))
        for event in train(stream, SGD(), network, epochs=EPOCHS, batch=32, lr=arguments.lr)
        if isinstance(event, Stepped) and event.step > first and event.step % 50 == 0
    ]
    running, batches = ([round(pair[i], 1) for pair in found] for i in (0, 1))
    print(way, running, batches, flush=True)
    return {
        "images": way, "examples": len(held), "running": running, "batches": batches, "lowest": min(running),
        "running_mean": round(mean(running), 1), "batches_mean": round(mean(batches), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [measure(way, arguments) for way in WAYS]
    publish({**provenance(), "width": arguments.width, "lr": arguments.lr, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
