"""Measure the overhead of ``FPF.observe``, relative to the training step: between repairs, or with them.

    python benchmarks/observe.py [--network resnet18|mlp] [--batch 32] [--steps 320] [--device cpu]
        [--policy distinct] [--window 20] [--budget 0.8] [--distill 0] [--out FILE]

Every step is timed in two parts: the training step of the user, and ``observe``. All calls of ``observe`` count,
including those that write to the buffer and those at the end of a window, which copy the parameters. With ``--budget``
repairs count too. Every batch is new. On a CPU the time is that of the process, so that other processes disturb it
less.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import forgetless
from provenance import provenance, publish


def measure(
    network: str,
    batch: int,
    steps: int,
    device: str,
    policy: str,
    window: int | None,
    budget: float | None,
    distill: float,
) -> dict[str, object]:
    """Return the milliseconds of training and of ``observe`` per step."""
    torch.manual_seed(0)
    if network == "resnet18":
        model: torch.nn.Module = forgetless.networks.resnet18(10).to(device)
        x = torch.rand(100, batch, 3, 32, 32, device=device)
    else:
        model = forgetless.networks.mlp(10).to(device)
        x = torch.rand(100, batch, 1, 28, 28, device=device)
    y = torch.randint(10, (100, batch), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Either windows whose changes are compared, or a budget so small that no repair falls into the measurement.
    mode: dict[str, Any] = {"budget": budget or 1e-9} if window is None else {"window": window}
    fpf = forgetless.FPF(model, capacity=500, distill=distill, policy=policy, **mode)

    def synchronised_time() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    training = observing = 0.0
    for step in range(-40, steps):  # forty steps to warm up
        images, labels = x[step % 100] + step, y[step % 100]
        start = synchronised_time()
        logits = model(images)
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
        between = synchronised_time()
        fpf.observe(images, labels, logits if distill else None)
        end = synchronised_time()
        if step >= 0:
            training += between - start
            observing += end - between
    return {
        "network": network,
        "batch": batch,
        "steps": steps,
        "policy": policy,
        "window": window,
        "budget": budget,
        "repairs": fpf.finetunings,
        "distill": distill,
        "training_ms_per_step": round(1000 * training / steps, 4),
        "observe_ms_per_step": round(1000 * observing / steps, 4),
        "overhead_percent": round(100 * observing / training, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("resnet18", "mlp"), default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--policy", default="distinct")
    parser.add_argument(
        "--window",
        type=int,
        help="steps whose changes are compared; default: repairs within a budget, which compare none",
    )
    parser.add_argument("--budget", type=float, help="also time repairs within this budget; default: no repair")
    parser.add_argument("--distill", type=float, default=0.0)
    parser.add_argument("--out", type=Path, help="also write the result to this JSON file")
    arguments = parser.parse_args()
    result = measure(
        arguments.network,
        arguments.batch,
        arguments.steps,
        arguments.device,
        arguments.policy,
        arguments.window,
        arguments.budget,
        arguments.distill,
    )
    publish(result | provenance(arguments.device), arguments.out)


if __name__ == "__main__":
    main()
