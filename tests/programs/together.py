"""Started by test_distributed.py: digits through DistributedDataParallel and k-FPF in one and in two processes.

    python together.py FOLDER

Each process writes a summary of every case as JSON.

``whole``: every process gets its half of each batch, the buffer holds all and a finetuning takes all of it, so that one
process with the same data does the same. ``sampled``: a small buffer and small draws. ``norm``: with batch norm.
``budget``: repairs within a budget, also with batch norm; the first process gets two thirds of each batch. ``odd``: the
same without batch norm, with a buffer and repairs whose examples two processes cannot share equally.
``unlabelled``: a label for each of several places, few of them in one half of the images; in double precision.
``starved``: the last process has batches without examples.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel needs it; two processes would import it twice
import torch.distributed as dist
import torch.nn.functional as F
from forked import run_forked
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import forgetless


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    count, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if count > 1:
        dist.init_process_group("gloo")
    for case in ("whole", "sampled", "norm", "budget", "odd"):
        (folder / f"{case}{count}-{rank}.json").write_text(json.dumps(summary(case, count, rank)))
    (folder / f"unlabelled{count}-{rank}.json").write_text(json.dumps(unlabelled(count, rank)))
    (folder / f"starved{count}-{rank}.json").write_text(json.dumps(starved(count, rank)))
    if count > 1:
        dist.destroy_process_group()


def unlabelled(count: int, rank: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 6, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (20, 6), generator=generator)
    y[1::2, 1:] = -100
    y[3::2] = -100
    torch.manual_seed(0)
    network = nn.Linear(4, 3).double()
    fpf = forgetless.FPF(
        network, capacity=20, batch=20, steps=10, lr=0.5, groups="all", head="", forward=lambda model, x: model(x).mT
    )
    mine = slice(rank, None, count)
    fpf.observe(x[mine], y[mine])
    done = fpf.finish()
    return {"weights": network.weight.flatten().tolist(), "losses": done.losses}


def starved(count: int, rank: int) -> dict[str, Any]:
    fpf = forgetless.FPF(nn.Linear(4, 3), every=2, capacity=20, batch=10, steps=5, groups="all", head="")
    mine = 0 if rank == count - 1 else 10
    done = [fpf.observe(torch.rand(mine, 4), torch.zeros(mine, dtype=torch.int64)) for _ in range(2)]
    try:
        fpf.finish()
    except ValueError as error:
        return {"done": done, "error": str(error)}
    raise AssertionError


def summary(case: str, count: int, rank: int) -> dict[str, Any]:
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    torch.manual_seed(0)
    network = forgetless.networks.mlp(10, inputs=64, hidden=(32,))
    if case in ("norm", "budget"):
        network = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    model = DistributedDataParallel(network) if count > 1 else network
    settings = {"capacity": 60, "batch": 16} if case != "whole" else {"capacity": 1000, "batch": 1000}
    if case == "odd":
        settings = {"capacity": 21, "batch": 15}
    within = case in ("budget", "odd")
    settings |= {"budget": 3} if within else {"every": 15, "steps": 20, "lr": 0.1, "window": 5}
    fpf = forgetless.FPF(model, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for task in range(3):
        rows = (y // 2 == task).nonzero().flatten()
        for batch in rows[torch.randperm(len(rows), generator=generator)][:320].split(20):
            mine = batch.chunk(count)[rank] if case != "budget" or count == 1 else batch.split([14, 6])[rank]
            logits = model(x[mine])
            loss = F.cross_entropy(logits, y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            fpf.observe(x[mine], y[mine], logits)
        fpf.boundary()
    done = fpf.finish()
    old = y < 6
    return {
        "chosen": fpf.profile().chosen,
        "finetunings": fpf.finetunings,
        "shifts": fpf.shifts,
        "capacity": fpf.buffer.capacity,
        "losses": [done.loss_before, done.loss_after] if within else done.losses,
        "trained": fpf.state_dict()["upkeep"]["trained"] if within else None,
        "kept": sorted((fpf.buffer["x"] @ torch.arange(64.0)).tolist()),  # tells images apart
        "weights": torch.cat([tensor.flatten().double() for tensor in network.state_dict().values()]).tolist(),
        "accuracy": 100 * (network.eval()(x[old]).argmax(1) == y[old]).double().mean().item(),
        "state": fpf.state_dict()["processes"],
    }


for processes in (1, 2):
    run_forked(processes, main, Path(sys.argv[1]))
