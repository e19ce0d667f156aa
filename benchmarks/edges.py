"""Measure what a crop should show beyond the edge: the first task of Seq-PathMNIST with plain SGD.

    python benchmarks/edges.py [--width 12] [--lr 0.03] [--out FILE]

The images are left as they are, cropped with black beyond the edge, or cropped with the image mirrored there; cropped
images are also flipped. After the first third of two epochs on half of the images, the validation split is classified
every 50 steps, with the running statistics of batch norm and with the statistics of each batch. The ResNet-18 is
narrow, so that a CPU is enough.
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
CROPS: dict[str, dict[str, Any]] = {
    "as they are": {"pad": 0, "flip": False},
    "cropped, black over the edge": {"pad": 4, "flip": True},
    "cropped, mirrored at the edge": {"pad": 4, "flip": True, "mirror": True},
}


def measure(crop: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train with one kind of crop and return the accuracies with both statistics."""
    whole = replace(streams.seq_pathmnist(), **{"mirror": False, **CROPS[crop]})
    stream = smaller(replace(whole, tasks=whole.tasks[:1]), 2).validation()
    held_out = stream.tasks[0].test
    x = Preparation(stream, torch.device("cpu")).plain(held_out.x)
    network = with_seed(lambda: networks.resnet18(stream.classes, 3, width=arguments.width), 0)
    first = EPOCHS * len(stream.tasks[0].train) // 32 // 3
    pairs = [
        (accuracy(network, x, held_out.y, running=True), accuracy(network, x, held_out.y, running=False))
        for event in train(stream, SGD(), network, epochs=EPOCHS, batch=32, lr=arguments.lr)
        if isinstance(event, Stepped) and event.step > first and event.step % 50 == 0
    ]
    running, batches = ([round(pair[i], 1) for pair in pairs] for i in (0, 1))
    print(crop, running, batches, flush=True)
    return {
        "images": crop, "examples": len(held_out), "running": running, "batches": batches, "lowest": min(running),
        "running_mean": round(mean(running), 1), "batches_mean": round(mean(batches), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [measure(crop, arguments) for crop in CROPS]
    publish({**provenance(), "width": arguments.width, "lr": arguments.lr, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
