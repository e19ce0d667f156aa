"""Measure the overhead of ``FPF.observe`` between finetunings, relative to the training step.

    python benchmarks/observe.py [--network resnet18|mlp] [--batch 32] [--steps 40] [--device cpu] [--out FILE]

Every step is timed in two parts: the training step of the user, and ``observe``. All calls of ``observe`` count,
including those at the end of a window, which copy the parameters.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import forgetless
from provenance import provenance, publish


def measure(network: str, batch: int, steps: int, device: str) -> dict[str, object]:
    """Return the milliseconds of training and of ``observe`` per step."""
    torch.manual_seed(0)
    if network == "resnet18":
        model: torch.nn.Module = forgetless.networks.resnet18(10).to(device)
        x = torch.rand(batch, 3, 32, 32, device=device)
    else:
        model = forgetless.networks.mlp(10).to(device)
        x = torch.rand(batch, 1, 28, 28, device=device)
    y = torch.randint(10, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fpf = forgetless.FPF(model, capacity=500, window=20, distill=0.5)

    def synchronised_time() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    training = observing = 0.0
    for step in range(-3, steps):  # three steps to warm up
        start = synchronised_time()
        logits = model(x)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        between = synchronised_time()
        fpf.observe(x, y, logits)
        end = synchronised_time()
        if step >= 0:
            training += between - start
            observing += end - between
    return {
        "network": network,
        "batch": batch,
        "steps": steps,
        "training_ms_per_step": round(1000 * training / steps, 4),
        "observe_ms_per_step": round(1000 * observing / steps, 4),
        "overhead_percent": round(100 * observing / training, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("resnet18", "mlp"), default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="also write the result to this JSON file")
    arguments = parser.parse_args()
    result = measure(arguments.network, arguments.batch, arguments.steps, arguments.device)
    publish(result | provenance(arguments.device), arguments.out)


if __name__ == "__main__":
    main()
