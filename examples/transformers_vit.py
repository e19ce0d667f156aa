"""Pretrain a small vision transformer of Hugging Face, then finetune it on one pair of digits after another.

python examples/transformers_vit.py [--seed 0] [--adapters] [--quick]

Pretraining uses a fifth of scikit-learn's digits, rotated and never upright: the network predicts the digit and its
rotation. These images are in no task. Then comes a stream of five tasks of two upright digits: plain finetuning, the
same with FPF at the end, and with k-FPF. With --adapters the pretrained weights stay fixed; LoRA adapters (peft) and
the classifier are trained and repaired.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import forgetless

EPOCHS, BATCH, CAPACITY = 5, 10, 200
RATES = {"full": 0.02, "LoRA": 0.05}  # SGD's learning rate in the stream
WAYS: dict[str, dict[str, dict[str, Any] | None]] = {  # the settings of FPF, or None for plain finetuning
    "full": {"plain": None, "FPF": {"lr": 0.05}, "k-FPF": {"lr": 0.05, "every": 50, "threshold": 0.15}},
    "LoRA": {"plain": None, "FPF": {"lr": 0.1}, "k-FPF": {"lr": 0.1, "every": 50}},
}


@dataclass(frozen=True)
class Outcome:
    """Accuracies over all classes in percent, before and after the last repair, and the share of trained parameters."""

    before: float
    after: float
    trained: float
    fpf: forgetless.FPF | None

    @property
    def repaired(self) -> float:
        """Return the share of repaired parameters."""
        return 0.0 if self.fpf is None else self.fpf.profile().share


@cache
def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Return 1,797 real 8×8 images: a fifth for the test, a fifth for pretraining, the rest for the stream.

    A sixth of the stream is the validation set on which the settings were chosen; final runs train on it too.
    """
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(data.target, dtype=torch.int64)
    row = torch.arange(len(x))
    parts = {"test": row % 5 == 0, "pretraining": row % 5 == 1, "validation": row % 10 == 2}
    parts["stream"] = ~(parts["test"] | parts["pretraining"])
    parts["without validation"] = parts["stream"] & ~parts["validation"]
    return {name: (x[rows], y[rows]) for name, rows in parts.items()}


def vit(labels: int, layers: int = 4) -> nn.Module:
    """Return a network of sixteen patches of 2×2 pixels. With four layers it has 136,000 parameters."""
    model: nn.Module = ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=2, num_channels=1, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
            intermediate_size=128, hidden_dropout_prob=0.0, num_labels=labels,
        )
    )  # fmt: skip
    return model


@cache
def pretrained(seed: int, epochs: int, layers: int = 4) -> dict[str, Tensor]:
    """Return the weights of a network that has learned rotated digits, without its classifier."""
    torch.manual_seed(seed)
    model = vit(30, layers).train()
    images, labels = digits()["pretraining"]
    x = torch.cat([images.rot90(turns, (2, 3)) for turns in (1, 2, 3)])
    y = torch.cat([3 * labels + turns - 1 for turns in (1, 2, 3)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(pixel_values=x[rows]).logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value for name, value in model.state_dict().items() if not name.startswith("classifier")}


def stream(x: Tensor, y: Tensor, seed: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of the digits 0 and 1, then of 2 and 3, and so on. Nothing marks where a task ends."""
    generator = torch.Generator().manual_seed(seed)
    for task in range(5):
        examples = (y // 2 == task).nonzero().flatten()
        for _ in range(epochs):
            for rows in examples[torch.randperm(len(examples), generator=generator)].split(BATCH):
                yield x[rows], y[rows]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    correct = (model(pixel_values=x).logits.argmax(1) == y).float().mean()
    model.train()
    return 100 * float(correct)


def run(
    way: str,
    seed: int = 0,
    adapters: bool = False,
    quick: bool = False,
    validation: bool = False,
    rate: float | None = None,
    **settings: Any,
) -> Outcome:
    """Train on the stream. ``validation``, ``rate`` and ``settings`` are for choosing settings."""
    kind = "LoRA" if adapters else "full"
    layers = 2 if quick else 4
    weights = pretrained(seed, 4 if quick else 30, layers)
    torch.manual_seed(seed)
    model = vit(10, layers)
    model.load_state_dict(weights, strict=False)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"]))
    model.train()

    chosen = WAYS[kind][way]
    fpf = None if chosen is None else forgetless.FPF(model, CAPACITY, seed=seed, **(chosen | settings))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=rate or RATES[kind])
    x, y = digits()["without validation" if validation else "stream"]
    for images, labels in stream(x, y, seed, epochs=3 if quick else EPOCHS):
        batch = {"pixel_values": images}
        logits = model(**batch).logits
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fpf:
            fpf.observe(batch, labels, logits)

    test = digits()["validation" if validation else "test"]
    before = accuracy(model, *test)
    if fpf:
        fpf.finish()
    total = sum(parameter.numel() for parameter in model.parameters())
    return Outcome(before, accuracy(model, *test), sum(p.numel() for p in trainable) / total, fpf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adapters", action="store_true", help="train LoRA adapters and the classifier only")
    parser.add_argument("--quick", action="store_true", help="less pretraining, fewer epochs, two layers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    outcomes = {way: run(way, arguments.seed, arguments.adapters, arguments.quick) for way in WAYS["full"]}
    plain = outcomes["plain"]
    print(f"accuracy in % over all ten classes after five tasks of two; trained: {plain.trained:.1%} of the parameters")
    print(f"{'':<6} {'before':>7} {'after':>7} {'gain':>7}  repaired")
    for way, outcome in outcomes.items():
        gain = outcome.after - plain.after
        print(f"{way:<6} {outcome.before:>7.1f} {outcome.after:>7.1f} {gain:>+7.1f}  {outcome.repaired:.2%}")
    print("before, after: the last repair; gain: over plain finetuning; repaired: share of the parameters")
    for way, outcome in outcomes.items():
        if outcome.fpf:
            print(f"\nforgetting profile, {way}\n{outcome.fpf.profile()}")


if __name__ == "__main__":
    main()
