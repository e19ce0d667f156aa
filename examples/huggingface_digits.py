"""Train with Hugging Face's Trainer on scikit-learn's digits, five tasks of two classes: plain, with FPF, with k-FPF.

pip install -c constraints.txt '.[digits,transformers]'
python examples/huggingface_digits.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

import forgetless
from forgetless.integrations.huggingface import FPFCallback

WAYS: dict[str, dict[str, Any] | None] = {  # the settings of FPF, or None for plain training
    "plain": None,
    "FPF": {"capacity": 200, "steps": 300},
    "k-FPF": {"capacity": 200, "every": 50},
}


class Images(Dataset[dict[str, Tensor]]):
    """Images and labels under the names of the model's arguments."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[row], "labels": self.y[row]}


class Classifier(nn.Module):
    """A model as a Trainer expects it: its arguments are the columns of the data, and it returns loss and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = forgetless.networks.mlp(classes=10, inputs=64)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.network(pixel_values)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def run(way: str, seed: int = 0) -> tuple[float, forgetless.FPF | None]:
    """Train on all tasks; return the test accuracy over all ten classes in percent, and the FPF."""
    set_seed(seed)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(x)) % 5 == 0
    model = Classifier()
    settings = WAYS[way]
    fpf = None if settings is None else forgetless.FPF(model, seed=seed, **settings)
    callbacks: list[Any] = [] if fpf is None else [FPFCallback(fpf)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=3,
            per_device_train_batch_size=10,
            learning_rate=0.1,
            optim="sgd",
            lr_scheduler_type="constant",
            use_cpu=True,
            seed=seed,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        for task in range(5):
            rows = ~test & (y // 2 == task)
            trainer = Trainer(model, arguments, train_dataset=Images(x[rows], y[rows]), callbacks=callbacks)
            trainer.remove_callback(PrinterCallback)  # it would print the run time of each task
            trainer.train()
    if fpf:
        fpf.finish()
    with torch.no_grad():
        return 100 * (model(x[test])["logits"].argmax(1) == y[test]).float().mean().item(), fpf


def main() -> None:
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    transformers.logging.set_verbosity_error()
    for way in WAYS:
        accuracy, fpf = run(way)
        print(f"{way:6} {accuracy:5.1f} %")
    print(fpf.profile() if fpf else "")


if __name__ == "__main__":
    main()
