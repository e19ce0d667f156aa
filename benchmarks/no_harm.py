"""Measure whether `finish()` ever harms: random networks, optimisers, schedules, rates, buffers and streams.

    python benchmarks/no_harm.py [--first 0] [--count 200] [--workers 2] [--out benchmarks/records/no-harm.json]

The rules of ``finish()`` were revised after harm in seeds below 200; no rule was chosen on the seeds from 2000
(records/no-harm-fresh.json).

Each seed draws a combination and trains a plain loop on half of scikit-learn's digits with ``FPF(model, capacity)`` and
no other setting. The other half is the test set, in all views that were seen. It is measured just before and just after
``finish()``. The loss is that of the training, with the stream's label noise. The score is on clean labels: the
accuracy, for the U-Net the mean IoU of the digit and the background, for the language model the accuracy per pixel, and
for regression R², all in percent.

The standard error of a change is paired over the test images. A change of the score is noise up to three standard
errors, or one point where that is more. A rise of the loss is noise up to three standard errors, or 5 % where that is
more. By chance, one mean in 740 falls by more than three standard errors, so 0.3 are expected among 200 combinations.
These limits were fixed with seeds from 1000, before the first seed of the records.

The record is written after each combination, and finished ones are skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import forgetless
from forgetless.repair.report import Report
from oracle import rounded, write
from pairs import DoubleConvolution, Transformer, UNet
from provenance import provenance

ERRORS, POINTS, SHARE = 3, 1.0, 0.05  # what counts as noise: standard errors, points of score, share of the loss
BACKGROUND, SHADES = 10, 17  # the class of pixels without ink; the values of a pixel
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float, float]] = {  # with the range of the rates
    "SGD": (torch.optim.SGD, 0.01, 0.3),
    "SGD, momentum": (lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9), 0.003, 0.1),
    "Adam": (torch.optim.Adam, 1e-4, 1e-2),
    "AdamW": (torch.optim.AdamW, 1e-4, 1e-2),
    "RMSprop": (torch.optim.RMSprop, 1e-4, 3e-3),
}
SCHEDULES: dict[str, Callable[[float], float]] = {  # factors of the rate by the share of the training that is done
    "constant": lambda done: 1.0,
    "cosine": lambda done: wave(done),
    "warm restarts": lambda done: wave(4 * done % 1),
    "warm-up": lambda done: min(1.0, 0.01 + 10 * done),
    "step decay": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
    "one cycle": lambda done: max(1e-3, 1 - wave(done / 0.3) if done < 0.3 else wave((done - 0.3) / 0.7)),
}
STREAMS = ("stationary", "stationary", "tasks", "fading", "views")


def wave(done: float) -> float:
    """Return half a cosine from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Combination:
    """What a seed draws."""

    seed: int
    network: str
    optimizer: str
    lr: float
    schedule: str
    stream: str
    tasks: int  # 1: stationary or fading
    noise: float  # the share of wrong labels; for regression the noise's standard deviation
    capacity: int
    batch: int
    epochs: int

    @staticmethod
    def draw(seed: int) -> Combination:
        chance = random.Random(seed)
        network, optimizer = chance.choice(list(NETWORKS)), chance.choice(list(OPTIMIZERS))
        _, lowest, highest = OPTIMIZERS[optimizer]
        stream = chance.choice(STREAMS)
        return Combination(
            seed=seed,
            network=network,
            optimizer=optimizer,
            lr=float(f"{math.exp(chance.uniform(math.log(lowest), math.log(highest))):.2g}"),
            schedule=chance.choice(list(SCHEDULES)),
            stream=stream,
            tasks=chance.choice({"tasks": (2, 5), "views": (2, 3, 4)}.get(stream, (1,))),
            noise=chance.choice((0.0, 0.0, 0.0, 0.1, 0.3)),
            capacity=round(math.exp(chance.uniform(math.log(16), math.log(500)))),
            batch=chance.choice((16, 32, 64)),
            epochs=chance.choice((1, 4, 12)),
        )


# Data: each problem turns images of digits into inputs, targets with label noise, and targets without


class Examples(NamedTuple):
    x: Tensor
    y: Tensor
    clean: Tensor


def wrong_labels(y: Tensor, noise: float, classes: int, generator: torch.Generator) -> Tensor:
    """Return labels of which a share is replaced by random ones."""
    replaced = torch.rand(y.shape, generator=generator) < noise
    return torch.where(replaced, torch.randint(classes, y.shape, generator=generator), y)


def view(images: Tensor, number: int) -> Tensor:
    """Return images as they are, as negatives, turned by 90°, or both."""
    images = 1 - images if number % 2 else images
    return images.rot90(1, (1, 2)) if number >= 2 else images


def classified(images: Tensor, labels: Tensor, number: int, noise: float, generator: torch.Generator) -> Examples:
    return Examples(view(images, number)[:, None], wrong_labels(labels, noise, 10, generator), labels)


def segmented(images: Tensor, labels: Tensor, number: int, noise: float, generator: torch.Generator) -> Examples:
    """Make the digit the target of each pixel with ink."""
    ink = view(images, number - number % 2) > 0.3  # not of the negative
    targets = (wrong_labels(labels, noise, 10, generator), labels)
    maps = [torch.where(ink, target[:, None, None], BACKGROUND) for target in targets]
    return Examples(view(images, number)[:, None], *maps)


def continued(images: Tensor, labels: Tensor, number: int, noise: float, generator: torch.Generator) -> Examples:
    """Make each pixel a token, at half the height. The target of a token is the next one."""
    tokens = (16 * view(images, number).unflatten(1, (4, 2)).mean(2)).long().flatten(1)
    return Examples(tokens[:, :-1], wrong_labels(tokens[:, 1:], noise, SHADES, generator), tokens[:, 1:])


def completed(images: Tensor, labels: Tensor, number: int, noise: float, generator: torch.Generator) -> Examples:
    """Make the upper half of an image the input and the lower half the target."""
    x, y = view(images, number).flatten(1).split(32, 1)
    return Examples(x, y + noise * torch.randn(y.shape, generator=generator), y)


# Networks


class Rows(nn.Module):
    """A GRU that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(x[:, 0])[0][:, -1])
        return logits


class Patches(nn.Conv2d):
    """Embed the sixteen patches of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(2).transpose(1, 2)


def perceptron(dropout: float = 0.0) -> nn.Module:
    layers = [nn.Linear(64, 100), nn.ReLU(), nn.Dropout(dropout), nn.Linear(100, 100), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(100, 10))


def convolutional() -> nn.Module:
    blocks = [DoubleConvolution(1, 12), nn.MaxPool2d(2), DoubleConvolution(12, 24), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(24, 10))


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 32))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Examples]]] = {
    "MLP": (perceptron, classified),
    "MLP, dropout": (lambda: perceptron(0.3), classified),
    "CNN, batch norm": (convolutional, classified),
    "ViT": (lambda: Transformer(Patches(1, 32, 2, 2), 16, 32, depth=2, classes=10), classified),
    "GRU": (Rows, classified),
    "U-Net": (lambda: UNet(4), segmented),
    "language model": (lambda: Transformer(nn.Embedding(SHADES, 32), 31, 32, 1, SHADES, causal=True), continued),
    "regression": (regressor, completed),
}


# Training and measurement


def examples(combination: Combination) -> tuple[Examples, Tensor, Examples]:
    """Return training examples in the order of their tasks, the class or task of each, and the tests of all tasks."""
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float().view(-1, 8, 8) / 16
    generator = torch.Generator().manual_seed(combination.seed)
    train, test = torch.randperm(len(images), generator=generator).chunk(2)
    make = NETWORKS[combination.network][1]
    views = combination.tasks if combination.stream == "views" else 1
    parts = [
        make(images[rows], labels[rows], number, combination.noise, generator)
        for number, rows in enumerate(train.chunk(views))
    ]
    tests = [make(images[test], labels[test], number, combination.noise, generator) for number in range(views)]
    classes = torch.randperm(10, generator=generator)[labels[train]]  # in the order in which they arrive
    if combination.stream == "views":
        tasks = torch.cat([torch.full((len(part.x),), number) for number, part in enumerate(parts)])
    else:
        tasks = classes * combination.tasks // 10 if combination.stream == "tasks" else classes
    joined, tested = (Examples(*map(torch.cat, zip(*part, strict=True))) for part in (parts, tests))
    return joined, tasks, tested


def batches(combination: Combination, tasks: Tensor) -> Iterator[Tensor]:
    """Yield the rows of each batch."""
    epochs, batch = combination.epochs, combination.batch
    if combination.stream == "fading":
        steps = epochs * len(tasks) // batch
        for step in range(steps):
            yield torch.multinomial(torch.exp(-((tasks - 10 * step / steps + 0.5) ** 2) / 2), batch)
        return
    for task in range(combination.tasks):
        rows = torch.arange(len(tasks)) if combination.tasks == 1 else torch.nonzero(tasks == task)[:, 0]
        for _ in range(epochs):
            yield from rows[torch.randperm(len(rows))].split(batch)


@torch.no_grad()
def measure(model: nn.Module, tested: Examples, images: int) -> tuple[Tensor, Tensor]:
    """Return the loss and the score of each test image, averaged over its views."""
    training = model.training
    output = torch.cat([model.eval()(x) for x in tested.x.split(512)])
    model.train(training)
    if tested.y.is_floating_point():
        losses = F.mse_loss(output, tested.y, reduction="none").flatten(1).mean(1)
        variance = (tested.clean - tested.clean.mean(0)).square().mean()
        scores = 1 - (output - tested.clean).square().mean(1) / variance
    else:
        losses = F.cross_entropy(output, tested.y, reduction="none").view(len(output), -1).mean(1)
        predicted, clean = output.argmax(1).view(len(output), -1), tested.clean.view(len(output), -1)
        if output.ndim == 4:
            digit = clean.min(1, keepdim=True).values
            overlaps = [overlap(predicted == label, clean == label) for label in (digit, BACKGROUND)]
            scores = torch.stack(overlaps).mean(0)
        else:
            scores = (predicted == clean).float().mean(1)
    return losses.view(-1, images).mean(0), 100 * scores.view(-1, images).mean(0)


def overlap(predicted: Tensor, present: Tensor) -> Tensor:
    """Return the intersection over the union of each pair of masks."""
    return (predicted & present).sum(1) / (predicted | present).sum(1)


def paired(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return the means, and the mean change with its standard error over the test images."""
    change = (after - before).double()
    error = float(change.std() / len(change) ** 0.5)
    return {"before": float(before.mean()), "after": float(after.mean()), "change": float(change.mean()), "se": error}


def verdict(score: Mapping[str, float], loss: Mapping[str, float]) -> str:
    """Return whether a repair helped or harmed by more than noise."""
    noise = max(ERRORS * score["se"], POINTS)
    if score["change"] < -noise or loss["change"] > max(ERRORS * loss["se"], SHARE * loss["before"]):
        return "harm"
    return "gain" if score["change"] > noise else "within noise"


def run(seed: int) -> dict[str, Any]:
    """Train the combination of a seed, and return what ``finish()`` changed."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    combination = Combination.draw(seed)
    torch.manual_seed(seed)
    data, tasks, tested = examples(combination)
    model = NETWORKS[combination.network][0]()
    optimizer = OPTIMIZERS[combination.optimizer][0](model.parameters(), lr=combination.lr)
    loss = F.mse_loss if data.y.is_floating_point() else F.cross_entropy
    fpf = forgetless.FPF(model, combination.capacity, loss=F.mse_loss if loss is F.mse_loss else None)
    stream = list(batches(combination, tasks))
    for step, rows in enumerate(stream):
        for group in optimizer.param_groups:
            group["lr"] = combination.lr * SCHEDULES[combination.schedule](step / len(stream))
        optimizer.zero_grad()
        loss(model(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
        fpf.observe(data.x[rows], data.y[rows])
    images = len(load_digits().target) // 2
    before = measure(model, tested, images)
    report = fpf.finish()
    assert isinstance(report, Report)
    after = measure(model, tested, images)
    losses, scores = (paired(*pair) for pair in zip(before, after, strict=True))
    figures: dict[str, Any] = rounded(
        {
            **asdict(combination),
            "steps": len(stream),
            "held_out": {"examples": report.held_out, "before": report.loss_before, "after": report.loss_after},
            "repair": {"optimizer": report.optimizer, "lr": report.lr, "kept": report.steps, "tried": report.tried},
            "cost": report.cost,
            "loss": losses,
            "score": scores,
            "verdict": verdict(scores, losses),
            "seconds": time.perf_counter() - started,
        }
    )
    return figures


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of combinations by verdict and the changes of the score: of all, and of some kinds."""
    kinds: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "all": lambda entry: True,
        "stationary": lambda entry: entry["stream"] == "stationary",
        "stationary, at least 90 before": lambda e: e["stream"] == "stationary" and e["score"]["before"] >= 90,
        "U-Net": lambda entry: entry["network"] == "U-Net",
    }
    chosen = {name: [entry for entry in runs if belongs(entry)] for name, belongs in kinds.items()}
    return {
        name: {
            "combinations": len(entries),
            **{kind: sum(entry["verdict"] == kind for entry in entries) for kind in ("gain", "within noise", "harm")},
            "undone": sum(not entry["repair"]["kept"] for entry in entries),
            "mean_change": mean(entry["score"]["change"] for entry in entries),
            "median_change": median(entry["score"]["change"] for entry in entries),
            "worst": {
                str(entry["seed"]): entry["score"]["change"]
                for entry in sorted(entries, key=lambda entry: float(entry["score"]["change"]))[:3]
            },
        }
        for name, entries in chosen.items()
        if entries
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="the number of seeds")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/no-harm.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(arguments.out.read_text())["runs"] if arguments.out.exists() else []
    seeds = range(arguments.first, arguments.first + arguments.count)
    left = sorted(set(seeds) - {entry["seed"] for entry in runs})
    with ProcessPoolExecutor(arguments.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, seed) for seed in left]):
            result = future.result()
            runs = sorted([*runs, result], key=lambda entry: entry["seed"])
            write({"summary": rounded(summary(runs)), **provenance(), "runs": runs}, arguments.out)
            name = " · ".join(str(result[key]) for key in ("network", "optimizer", "schedule", "stream", "capacity"))
            score, loss = result["score"], result["loss"]
            print(
                f"{result['seed']:4} {result['verdict']:12} {score['before']:5.1f} {score['change']:+6.2f} ± "
                f"{score['se']:.2f}  loss {loss['before']:.3f} {loss['change']:+.3f} ± {loss['se']:.3f}  "
                f"{result['seconds']:4.1f} s  {name}",
                flush=True,
            )
    print(json.dumps(rounded(summary(runs)), indent=2))


if __name__ == "__main__":
    main()
