"""Measure the missed and the false shifts of the boundary detector on the digits stream, by its settings.

    python benchmarks/boundaries.py [--seeds 5] [--out FILE]

The runs differ in optimizer, batch size, epochs and window, so that a task has between 5 and 58 windows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import forgetless
from forgetless.repair.shifts import boundaries
from forgetless.repair.tracker import Tracker
from provenance import parse_arguments, provenance, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import own_loop

WAYS: list[dict[str, Any]] = [
    {"optimizer": optimizer, "batch": batch, "epochs": epochs, "window": window}
    for optimizer, batch, epochs, window in [
        ("sgd .1", 10, 5, 10),
        ("sgd .1", 10, 5, 20),
        ("sgd .1", 10, 5, 29),
        ("sgd .1", 32, 5, 9),
        ("sgd .1", 32, 10, 5),
        ("sgd .1", 10, 20, 10),
        ("sgd .1", 10, 20, 20),
        ("sgd .1", 10, 1, 5),
        ("sgd .1", 10, 2, 5),
        ("sgd .03", 10, 3, 10),
        ("sgd .2", 10, 40, 29),
        ("momentum .01", 10, 5, 10),
        ("momentum .01", 10, 20, 20),
        ("adam .001", 10, 5, 10),
        ("adam .001", 10, 20, 20),
    ]
]


def window_changes(way: dict[str, Any], seed: int) -> tuple[list[list[float]], list[int]]:
    """Return the changes of every tensor in every window, and the windows in which the data shifted."""
    own_loop.BATCH, own_loop.EPOCHS = way["batch"], way["epochs"]
    x, y, *_ = own_loop.digits()
    torch.manual_seed(seed)
    model = forgetless.networks.mlp(10, inputs=64)
    name, lr = way["optimizer"].split()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=float(lr), momentum=0.9 if name == "momentum" else 0.0
    )
    if name == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=float(lr))
    tracker = Tracker(model, [name for name, _ in model.named_parameters()])
    tracker.start()
    rows, shifts, task = [], [], 0
    for step, (images, labels) in enumerate(own_loop.stream(x, y, seed), start=1):
        if int(labels[0]) // 2 != task:
            task += 1
            shifts.append((step - 1) // way["window"])
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step % way["window"] == 0:
            row = tracker.mark()
            assert row is not None
            rows.append(row.changes.tolist())
    return rows, shifts


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=5)
    torch.set_num_threads(1)
    runs = [window_changes(way, seed) for way in WAYS for seed in range(arguments.seeds)]
    table = []
    for settle in (2, 3, 4):
        for jump in (1.5, 2.0, 3.0):
            for floor in (0.0, 0.1, 0.2, 0.3, 0.5):
                missed = false = 0
                for rows, shifts in runs:
                    detected = boundaries(rows, settle, jump, floor)
                    missed += sum(not {shift, shift + 1} & set(detected) for shift in shifts)
                    false += sum(not {window, window - 1} & set(shifts) for window in detected)
                table.append({"settle": settle, "jump": jump, "floor": floor, "missed": missed, "false": false})
    total = sum(len(shifts) for _, shifts in runs)
    publish({"shifts": total, "ways": WAYS, "settings": table} | provenance(), arguments.out)


if __name__ == "__main__":
    main()
