"""Measure the picture of the README: digits, then their negatives, tested every 50 steps, with five seeds.

python benchmarks/picture.py [--seeds 5] [--out FILE]
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import forgetless
from forgetless.compute.flops import training_flops
from forgetless.repair.freezing import only
from provenance import provenance, publish

BATCH, STEPS, TRAINING_IMAGES, EVERY = 16, 900, 1400, 50


def measure(seed: int) -> dict[str, Any]:
    """Train on digits, then on their negatives, repair, and return the test accuracies in percent on the way."""
    torch.manual_seed(seed)
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    digits, negatives = x.float() / 16, 1 - x.float() / 16
    widths = [64, 128, 128, 128, 128]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fpf = forgetless.FPF(model, capacity=100, steps=300)  # on the paper's schedule

    def accuracies() -> list[float]:
        return [accuracy(model, images[TRAINING_IMAGES:], y[TRAINING_IMAGES:]) for images in (digits, negatives)]

    curve = [accuracies()]
    for images in (digits, negatives):
        for step, rows in enumerate(torch.randint(TRAINING_IMAGES, (STEPS, BATCH)), 1):
            loss = nn.functional.cross_entropy(model(images[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            fpf.observe(images[rows], y[rows])
            if step % EVERY == 0:
                curve.append(accuracies())
    fpf.finish()
    profile = fpf.profile()
    names = {name for group in profile.chosen for name in forgetless.groups(model)[group]}
    with only(model, names):
        repair = (fpf.settings.steps or 0) * training_flops(model, torch.zeros(fpf.settings.batch, 64))
    training = 2 * STEPS * training_flops(model, torch.zeros(BATCH, 64))
    return {
        "curve": curve, "repaired": accuracies(), "share": round(profile.share, 5),
        "compute": round((training + repair) / training, 3),
    }  # fmt: skip


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    hits: Tensor = (model(x).argmax(1) == y).float().mean()
    return round(100 * hits.item(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [measure(seed) for seed in range(arguments.seeds)]
    publish({"steps": STEPS, "every": EVERY, "runs": runs} | provenance(), arguments.out)


if __name__ == "__main__":
    main()
