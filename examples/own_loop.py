"""Train in a plain PyTorch loop on scikit-learn's digits, five tasks of two classes: without FPF, with FPF, with k-FPF.

python examples/own_loop.py [--seeds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import forgetless
from forgetless.training.metrics import mean_std

EPOCHS, BATCH, LR = 5, 10, 0.1
WAYS: dict[str, dict[str, Any] | None] = {  # the settings of FPF, or None for plain SGD
    "SGD alone": None,
    "FPF": {"capacity": 200, "steps": 300},
    "k-FPF-CE": {"capacity": 200, "every": 50},
    "k-FPF-KD": {"capacity": 200, "every": 50, "distill": 0.1},
}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training and the test images with their labels: 1,797 real 8×8 images, every fifth for the test."""
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    y = torch.tensor(data.target, dtype=torch.int64)
    test = torch.arange(len(x)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def stream(x: Tensor, y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of the digits 0 and 1, then of 2 and 3, and so on. Nothing marks where a task ends."""
    generator = torch.Generator().manual_seed(seed)
    for task in range(5):
        rows = (y // 2 == task).nonzero().flatten()
        for _ in range(EPOCHS):
            for batch in rows[torch.randperm(len(rows), generator=generator)].split(BATCH):
                yield x[batch], y[batch]


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], fpf: forgetless.FPF | None) -> None:
    """Train as usual, with two extra lines for FPF."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for x, y in batches:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fpf:
            fpf.observe(x, y, logits)
    if fpf:
        fpf.finish()


def run(seed: int, way: str) -> tuple[float, forgetless.FPF | None]:
    """Train on all tasks; return the test accuracy over all ten classes in percent, and the FPF."""
    x, y, test_x, test_y = digits()
    torch.manual_seed(seed)
    model = forgetless.networks.mlp(classes=10, inputs=64)
    settings = WAYS[way]
    fpf = None if settings is None else forgetless.FPF(model, seed=seed, **settings)
    train(model, stream(x, y, seed), fpf)
    with torch.no_grad():
        return 100 * (model(test_x).argmax(1) == test_y).float().mean().item(), fpf


def main() -> None:
    parser = argparse.ArgumentParser(description="digits in five tasks: plain SGD, FPF, k-FPF")
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    profile = None
    print("test accuracy in % after five tasks of two digits, buffer of 200 images")
    for way in WAYS:
        accuracies = []
        for seed in seeds:
            accuracy, fpf = run(seed, way)
            accuracies.append(accuracy)
        profile = fpf.profile() if fpf and way == "FPF" else profile
        mean, std = mean_std(accuracies)
        spread = f" ± {std:.1f}" if len(accuracies) > 1 else ""
        print(f"{way:<10} {mean:5.1f}{spread}  ({len(accuracies)} seeds)")
    print(f"\nforgetting profile of the last run with FPF\n{profile}")


if __name__ == "__main__":
    main()
