"""Started by test_llama_together.py: a tiny Llama and FPF in one process, and shared by two.

    python llama_together.py FOLDER

Each process writes a summary as JSON. Every process gets its part of each batch. The buffer holds all examples and a
repair draws all of them, so that one process with the same data does the same.

``alone``: one process. ``sharded``: ``fully_shard`` for each layer. ``accelerate``: what Accelerate prepares for two
processes, which is ``DistributedDataParallel``.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # two processes would import it twice
import torch.distributed as dist
from accelerate import Accelerator
from forked import run_forked
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import forgetless


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, pad_token_id=0, **sizes))


def batch_of(task: int, step: int, rank: int, count: int) -> dict[str, torch.Tensor]:
    """Return a process's part of sequences that count up by 1 or by 7; every second one has padding."""
    tokens = 1 + (4 * step + torch.arange(4)[:, None] + (1, 7)[task] * torch.arange(8)) % 63
    mask = torch.ones_like(tokens)
    mask[1::2, 5:] = 0
    whole = {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}
    return {name: rows.chunk(count)[rank] for name, rows in whole.items()}


def main(folder: Path, way: str) -> None:
    torch.set_num_threads(1)
    count, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if count > 1:
        dist.init_process_group("gloo")
    network = model = llama()
    if way == "sharded":
        for layer in network.model.layers:
            fully_shard(layer)
        fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
    if way == "accelerate":
        model, optimizer = Accelerator(cpu=True).prepare(network, optimizer)
    fpf = forgetless.FPF(model, capacity=100, batch=100, every=15, window=2, steps=5, lr=0.3)
    for step in range(20):
        if step == 10:
            fpf.boundary()
        batch = batch_of(step // 10, step, rank, count)
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        fpf.observe(batch)
    done = fpf.finish()
    whole = [weight.full_tensor() if way == "sharded" else weight for weight in network.parameters()]
    summary = {
        "model": type(model).__name__,
        "weights": torch.cat([weight.detach().flatten() for weight in whole]).tolist(),
        "losses": done.losses,
        "chosen": fpf.profile().chosen,
        "finetunings": fpf.finetunings,
        "held": len(fpf.buffer),
    }
    (folder / f"{way}-{rank}.json").write_text(json.dumps(summary))
    if count > 1:
        dist.destroy_process_group()


folder = Path(sys.argv[1])
run_forked(1, main, folder, "alone")
for way in ("sharded", "accelerate"):
    run_forked(2, main, folder, way)
