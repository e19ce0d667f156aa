"""Train with DistributedDataParallel on scikit-learn's digits, five tasks of two classes: plain, with FPF, with k-FPF.

    pip install -c constraints.txt '.[digits]'
    torchrun --standalone --nproc-per-node 2 examples/distributed_digits.py [plain] [FPF] [k-FPF]

Each process trains on its share of every batch and keeps its share of the buffer. On GPUs, start one process per GPU
and use "nccl".
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

import forgetless

WAYS: dict[str, dict[str, Any] | None] = {  # the settings of FPF, or None for plain training
    "plain": None,
    "FPF": {"capacity": 200, "steps": 300},
    "k-FPF": {"capacity": 200, "every": 50},
}


def run(way: str, seed: int = 0) -> tuple[float, forgetless.FPF | None]:
    """Train on all tasks; return the test accuracy over all ten classes in percent, and the FPF."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(x)) % 5 == 0
    torch.manual_seed(seed)
    model = DistributedDataParallel(forgetless.networks.mlp(classes=10, inputs=64))
    settings = WAYS[way]
    fpf = None if settings is None else forgetless.FPF(model, seed=seed, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(seed)  # the same order in all processes
    for task in range(5):
        rows = (~test & (y // 2 == task)).nonzero().flatten()
        for _ in range(3):
            for batch in rows[torch.randperm(len(rows), generator=generator)].split(10):
                if len(batch) < dist.get_world_size():  # every process must take the same number of steps
                    continue
                mine = batch[dist.get_rank() :: dist.get_world_size()]
                logits = model(x[mine])
                loss = F.cross_entropy(logits, y[mine])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if fpf:
                    fpf.observe(x[mine], y[mine], logits)
        if fpf and task < 4:
            fpf.boundary()
    if fpf:
        fpf.finish()
    with torch.no_grad():
        return 100 * (model.module(x[test]).argmax(1) == y[test]).float().mean().item(), fpf


def main() -> None:
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    dist.init_process_group("gloo")
    for way in sys.argv[1:] or WAYS:
        accuracy, fpf = run(way)
        if dist.get_rank() == 0:
            print(f"{way:6} {accuracy:5.1f} %")
    if fpf and dist.get_rank() == 0:
        print(fpf.profile())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
