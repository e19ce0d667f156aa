"""Train with Avalanche on scikit-learn's digits, five tasks of two classes: plain (Naive), with FPF, with k-FPF.

pip install -c constraints.txt '.[digits,avalanche]'
python examples/avalanche_digits.py
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import forgetless
from forgetless.integrations.avalanche import FPFPlugin

WAYS: dict[str, dict[str, Any] | None] = {  # the settings of FPF, or None for plain training
    "plain": None,
    "FPF": {"capacity": 200, "steps": 300},
    "k-FPF": {"capacity": 200, "every": 50},
}


class Digits(TensorDataset):
    """Images and labels, with the labels also in ``targets``, where Avalanche looks for them."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y)
        self.targets = y.tolist()


def run(way: str, seed: int = 0, *, replay: bool = False) -> tuple[float, forgetless.FPF | None]:
    """Train on all tasks; return the test accuracy over all ten classes in percent, and the FPF."""
    torch.manual_seed(seed)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(x)) % 5 == 0
    benchmark = nc_benchmark(
        as_classification_dataset(Digits(x[~test], y[~test])),
        as_classification_dataset(Digits(x[test], y[test])),
        n_experiences=5,
        task_labels=False,
        fixed_class_order=list(range(10)),
    )
    model = forgetless.networks.mlp(classes=10, inputs=64)
    settings = WAYS[way]
    fpf = None if settings is None else forgetless.FPF(model, seed=seed, **settings)
    plugins: list[Any] = [ReplayPlugin(mem_size=200)] if replay else []
    plugins += [] if fpf is None else [FPFPlugin(fpf)]
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_mb_size=10,
        train_epochs=3,
        plugins=plugins,
        evaluator=None,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    if fpf:
        fpf.finish()
    with torch.no_grad():
        return 100 * (model(x[test]).argmax(1) == y[test]).float().mean().item(), fpf


def main() -> None:
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    for way in WAYS:
        accuracy, fpf = run(way)
        print(f"{way:6} {accuracy:5.1f} %")
    print(fpf.profile() if fpf else "")


if __name__ == "__main__":
    main()
