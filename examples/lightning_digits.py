"""Train with Lightning on scikit-learn's digits, five tasks of two classes: plain, with FPF, with k-FPF.

pip install -c constraints.txt '.[digits,lightning]'
python examples/lightning_digits.py
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import forgetless
from forgetless.integrations.lightning import FPFCallback

WAYS: dict[str, dict[str, Any] | None] = {  # the settings of FPF, or None for plain training
    "plain": None,
    "FPF": {"capacity": 200, "steps": 300},
    "k-FPF": {"capacity": 200, "every": 50},
}


class Classifier(LightningModule):
    """An ordinary Lightning module. Only the logits in its output are for FPF."""

    def __init__(self) -> None:
        super().__init__()
        self.network = forgetless.networks.mlp(classes=10, inputs=64)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> dict[str, Tensor]:
        x, y = batch
        logits = self(x)
        return {"loss": F.cross_entropy(logits, y), "logits": logits}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(way: str, seed: int = 0) -> tuple[float, forgetless.FPF | None]:
    """Train on all tasks; return the test accuracy over all ten classes in percent, and the FPF."""
    seed_everything(seed, verbose=False)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(x)) % 5 == 0
    module = Classifier()
    settings = WAYS[way]
    fpf = None if settings is None else forgetless.FPF(module, seed=seed, **settings)
    callbacks: list[Any] = [] if fpf is None else [FPFCallback(fpf)]
    for task in range(5):
        rows = ~test & (y // 2 == task)
        loader = DataLoader(TensorDataset(x[rows], y[rows]), batch_size=10, shuffle=True)
        trainer = Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
    if fpf:
        fpf.finish()
    with torch.no_grad():
        return 100 * (module(x[test]).argmax(1) == y[test]).float().mean().item(), fpf


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    for way in WAYS:
        accuracy, fpf = run(way)
        print(f"{way:6} {accuracy:5.1f} %")
    print(fpf.profile() if fpf else "")


if __name__ == "__main__":
    main()
