"""Started by test_sharded.py: digits through ``fully_shard`` and FPF in one and in two processes.

    python sharded.py FOLDER

Each process writes a summary of every case as JSON. Every process gets its part of each batch. The buffer holds all
examples and a repair draws all that it may, so that one process with the same data does the same. The network has a
parameter of one element, of which the second process has an empty shard.

``budget`` and ``schedule``: the two policies, trained without a stop; ``language``: a language model within a budget,
for which a digit is a sequence of 16 tokens. In two processes there are also activation checkpointing,
``torch.compile`` and summed gradients (``composed``), more examples in one process (``uneven``), the same for
comparison with DistributedDataParallel (``uneven-ddp``), and what Accelerate prepares (``accelerate``). In four
processes there are two copies of each shard (``copies``). ``saved``: a checkpoint after 50 steps, then the processes
are killed. ``resumed``: the rest of the steps, from the checkpoint of two processes. ``missing``: the error of a
checkpoint that lacks a file.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # two processes would import it twice
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from forked import run_forked
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import forgetless
from forgetless.repair import upkeep

STEPS, SAVED = 60, 50
SETTINGS: dict[str, dict[str, Any]] = {
    "budget": {"capacity": 64, "batch": 64, "budget": 2},
    "language": {"capacity": 64, "batch": 64, "budget": 2},
    "schedule": {"capacity": 4000, "batch": 4000, "every": 20, "steps": 10, "lr": 0.1, "window": 5, "threshold": 0.5},
}


class Network(nn.Module):
    """Two blocks and a temperature of one element."""

    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.first = nn.Sequential(nn.Linear(64, 33), nn.LayerNorm(33), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(33, 33), nn.LayerNorm(33), nn.ReLU())
        self.temperature = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(33, 10)

    def forward(self, x):
        hidden = checkpoint(self.first, x, use_reentrant=False) if self.checkpointing else self.first(x)
        return self.head(self.second(hidden)) * self.temperature


class Language(Network):
    """The same network as a causal language model: it predicts the next of 17 tokens from the present one."""

    def __init__(self) -> None:
        super().__init__(checkpointing=False)
        self.embedding, self.head = nn.Embedding(17, 64), nn.Linear(33, 17)

    def forward(self, input_ids, labels=None):
        logits = super().forward(self.embedding(input_ids))
        loss = labels is not None and F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}

    def generate(self):
        """By this method forgetless knows a language model."""


def build(policy: str, way: str, count: int):
    """Return the network, the model around it, the optimizer and the FPF."""
    torch.manual_seed(0)
    network: nn.Module = Language() if policy == "language" else Network(way == "composed")
    model = network
    if way == "uneven-ddp":
        model = DistributedDataParallel(network)
    elif count > 1 and way != "accelerate":
        if way == "composed":
            network.second.compile(backend="aot_eager")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")) if way == "copies" else None
        fully_shard(network.first, mesh=mesh)
        fully_shard(network, mesh=mesh)
        if way == "composed":
            for module in (network.first, network):
                module.set_force_sum_reduction_for_comms(True)  # gloo needs it
                module.set_gradient_divide_factor(1.0)
            model = torch.compile(network, backend="aot_eager")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    if way == "accelerate":
        model, optimizer = prepare(network, optimizer)
    settings = SETTINGS[policy] | ({"capacity": 128, "groups": "all"} if way.startswith("uneven") else {})
    fpf = forgetless.FPF(model, **settings)
    if policy == "budget":
        upkeep.FORGOTTEN = 0.0  # so that SGD repairs: Adam magnifies differences of rounding
        fpf._repairer.tuner._clip = 0.5  # as for a language model, so that processes share the norm of a gradient
    return network, model, optimizer, fpf


def prepare(network: nn.Module, optimizer: torch.optim.Optimizer):
    """Return both as Accelerate prepares them with FSDP2, which it offers on GPUs only."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000, cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    AcceleratorState._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
    return accelerator.prepare(network, optimizer)


def train(policy: str, way: str, count: int, rank: int, folder: Path) -> dict[str, Any]:
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    tokens = torch.tensor(data.data).long().view(-1, 16, 4).sum(2) // 4
    network, model, optimizer, fpf = build(policy, way, count)
    state = {"app": App(network, optimizer), "fpf": forgetless.ShardedState(fpf)}
    begin = 0
    if way == "resumed":
        dcp.load(state, checkpoint_id=folder / f"{policy}-checkpoint")
        begin = SAVED
    scale = count if way == "composed" else 1  # gradients are summed there
    for step in range(begin, STEPS):
        first, second = (y // 5 == 2 * step // STEPS).nonzero().flatten()[:32].split(16)
        rows = torch.cat([first, first, second, second])  # as many as the buffer has, so that a repair draws all
        mine = rows.split([52, 12])[rank] if way.startswith("uneven") else rows.chunk(count)[rank]
        loss = (
            model(tokens[mine], tokens[mine])["loss"]
            if policy == "language"
            else F.cross_entropy(model(x[mine]), y[mine])
        )
        loss = loss / scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 7 == 0 and policy != "language":
            with torch.no_grad():
                model(x[:4])  # which leaves the root with whole parameters
        if step == STEPS // 2:
            fpf.boundary()
        fpf.observe(*({"input_ids": tokens[mine]}, tokens[mine]) if policy == "language" else (x[mine], y[mine]))
        if way == "saved" and step == SAVED - 1:
            dcp.save(state, checkpoint_id=folder / f"{policy}-checkpoint")
        if way == "saved" and step == SAVED + 3:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    gradients = [parameter.grad for parameter in network.parameters()]
    done = fpf.finish()
    shards = list(network.parameters())  # not the whole parameters, which miss what a repair writes
    return {
        "weights": torch.cat([whole(parameter).flatten() for parameter in shards]).tolist(),
        "chosen": fpf.profile().chosen,
        "scores": [group.sensitivity for group in fpf.profile().groups],
        "finetunings": fpf.finetunings,
        "optimizer": "sgd" if policy == "schedule" else done.optimizer,
        "losses": done.losses if policy == "schedule" else [done.loss_before, done.loss_after],
        "sharded": all(hasattr(parameter, "device_mesh") for parameter in shards),
        "gradients": all(p.grad is g for p, g in zip(shards, gradients, strict=True)),
        "smallest": min(shard(parameter).numel() for parameter in shards),
        "held": len(fpf.buffer),
    }


def missing(folder: Path) -> dict[str, Any]:
    """Load a checkpoint without the file of the second process."""
    fpf = build("budget", "plain", 1)[-1]
    copy = shutil.copytree(folder / "budget-checkpoint", folder / "incomplete")
    (copy / "__1_0.distcp").unlink()
    try:
        dcp.load({"fpf": forgetless.ShardedState(fpf)}, checkpoint_id=copy)
    except dcp.api.CheckpointException as error:
        return {"error": str(error), "step": fpf.step, "held": len(fpf.buffer)}
    raise AssertionError


class App:
    """The network and the optimizer, as torch's tutorial on distributed checkpoints wraps them."""

    def __init__(self, network, optimizer):
        self.network, self.optimizer = network, optimizer

    def state_dict(self):
        weights, averages = get_state_dict(self.network, self.optimizer)
        return {"network": weights, "optimizer": averages}

    def load_state_dict(self, state):
        set_state_dict(
            self.network, self.optimizer, model_state_dict=state["network"], optim_state_dict=state["optimizer"]
        )


def whole(parameter):
    return parameter.detach().full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def shard(parameter):
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def main(folder: Path, ways: list[tuple[str, str]]) -> None:
    torch.set_num_threads(1)
    count, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if count > 1:
        dist.init_process_group("gloo")
    for policy, way in ways:
        summary = train(policy, way, count, rank, folder)
        (folder / f"{policy}-{way}{count}-{rank}.json").write_text(json.dumps(summary))
    if count > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    budget, schedule = ("plain", "uneven", "uneven-ddp"), ("plain", "composed", "accelerate")
    ways = [("budget", way) for way in budget] + [("schedule", way) for way in schedule]
    run_forked(2, main, folder, [*ways, ("language", "plain")])
    run_forked(4, main, folder, [("schedule", "copies")])
    for policy in SETTINGS:
        with suppress(SystemExit):
            run_forked(2, main, folder, [(policy, "saved")])
    run_forked(2, main, folder, [(policy, "resumed") for policy in SETTINGS])
    run_forked(1, main, folder, [(policy, way) for policy in SETTINGS for way in ("plain", "resumed")])
    (folder / "missing.json").write_text(json.dumps(missing(folder)))
