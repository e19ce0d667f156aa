"""Measure `FPF(model)` without settings in a plain loop on digits: optimizers, fading classes, and weekly updates.

    python benchmarks/plain_loop.py --seeds 5 --out benchmarks/records/plain-loop.json

Every run trains the same perceptron on scikit-learn's digits, whose classes arrive in pairs. No boundary is announced.
"replay" adds a batch from a buffer of the same size to every step, as experience replay does.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import forgetless
from forgetless.memory.buffer import Buffer
from forgetless.repair.report import Report
from provenance import provenance, publish

BATCH, EPOCHS, CAPACITY = 10, 5, 500
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], float]] = {
    "SGD 0.1": (torch.optim.SGD, 0.1),
    "SGD 0.03": (torch.optim.SGD, 0.03),
    "Adam 0.001": (torch.optim.Adam, 1e-3),
    **{f"AdamW {lr:g}": (torch.optim.AdamW, lr) for lr in (1e-4, 3e-4, 1e-3, 3e-3)},
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return three quarters of the images for training and the others for testing."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[len(x) // 4 :], order[: len(x) // 4]
    return x[train], y[train], x[test], y[test]


def abrupt(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield the batches of five tasks of two classes, five epochs each."""
    for task in range(5):
        rows = torch.nonzero(y // 2 == task)[:, 0]
        for _ in range(EPOCHS):
            yield from rows[torch.randperm(len(rows))].split(BATCH)


def fading(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield the same number of batches, with classes that fade into each other as the time goes from 0 to 10."""
    steps = EPOCHS * len(x) // BATCH
    for step in range(steps):
        centre = 10 * step / steps - 0.5
        weights = torch.exp(-((y - centre) ** 2) / 2)
        yield torch.multinomial(weights, BATCH)


def train(kind: str, stream: str, optimizer: str, seed: int) -> dict[str, float]:
    """Train by plain steps with ``FPF(model)``, with replay at every step, or alone; return accuracy and cost."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = digits(seed)
    model = network()
    maker, lr = OPTIMIZERS[optimizer]
    descent = maker(model.parameters(), lr=lr)  # type: ignore[call-arg]
    fpf = forgetless.FPF(model) if kind == "fpf" else None
    buffer = Buffer(CAPACITY, seed=seed)
    for rows in (abrupt if stream == "abrupt" else fading)(x, y):
        images, labels = x[rows], y[rows]
        if kind == "replay" and len(buffer):
            drawn = buffer.draw(BATCH)
            images, labels = torch.cat([images, drawn["x"]]), torch.cat([labels, drawn["y"]])
        loss = nn.functional.cross_entropy(model(images), labels)
        descent.zero_grad()
        loss.backward()
        descent.step()
        if fpf is not None:
            fpf.observe(x[rows], y[rows])
        elif kind == "replay":
            buffer.add({"x": x[rows], "y": y[rows]})
    before = accuracy(model, test_x, test_y)
    report = fpf.finish() if fpf is not None else None
    cost = report.cost if isinstance(report, Report) else float(kind == "replay")
    return {"before": before, "accuracy": accuracy(model, test_x, test_y), "cost": cost or 0.0}


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return round(100 * float((model(x).argmax(1) == y).float().mean()), 2)


def week(number: int, folder: Path, seed: int) -> None:
    """Train on two new classes in a process of its own: load last week's network and memory, train, repair, save."""
    torch.manual_seed(100 * seed + number)
    x, y, test_x, test_y = digits(seed)
    model = network()
    fpf = forgetless.FPF(model)
    if number:
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        fpf.load_state_dict(torch.load(folder / "fpf.pt", weights_only=True))
    rows = torch.nonzero(y // 2 == number)[:, 0]
    descent = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(EPOCHS):
        for part in rows[torch.randperm(len(rows))].split(BATCH):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            descent.zero_grad()
            loss.backward()
            descent.step()
            fpf.observe(x[part], y[part])
    before = accuracy(model, test_x, test_y)
    fpf.finish()
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(fpf.state_dict(), folder / "fpf.pt")
    (folder / "result.json").write_text(
        json.dumps({"before": before, "accuracy": accuracy(model, test_x, test_y), "cost": 0.0})
    )


def weekly(seed: int) -> dict[str, float]:
    """Return the accuracy after five weekly updates, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(5):
            command = [sys.executable, __file__, "--week", str(number), "--folder", name, "--seed", str(seed)]
            subprocess.run(command, check=True)
        result: dict[str, float] = json.loads((folder / "result.json").read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/plain-loop.json"))
    parser.add_argument("--week", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.week is not None:
        week(arguments.week, arguments.folder, arguments.seed)
        return
    rows = []
    started = time.time()
    for optimizer in OPTIMIZERS:
        for stream in ("abrupt", "fading"):
            for kind in ("alone", "fpf", "replay"):
                runs = [train(kind, stream, optimizer, seed) for seed in range(arguments.seeds)]
                rows.append({"optimizer": optimizer, "stream": stream, "kind": kind, "runs": runs})
                shown = " ".join(f"{run['accuracy']:.1f}" for run in runs)
                print(f"{optimizer:11} {stream:7} {kind:7} {shown}  cost {runs[0]['cost']:.2f}", flush=True)
    runs = [weekly(seed) for seed in range(arguments.seeds)]
    rows.append({"optimizer": "AdamW 0.001", "stream": "weekly updates", "kind": "fpf", "runs": runs})
    print("weekly updates", " ".join(f"{run['accuracy']:.1f}" for run in runs))
    publish({"rows": rows, "seconds": round(time.time() - started, 1)} | provenance(), arguments.out)


if __name__ == "__main__":
    main()
