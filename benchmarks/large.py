"""Measure what ``FPF`` adds to the training of a large language model: time per step, memory, and time of a repair.

    python benchmarks/large.py --device cuda [--hidden 2048] [--layers 16] [--batch 8] [--length 1024] [--blocks 6]
        [--steps 10] [--window 20] [--out FILE]

The model is shaped like Llama and has random weights: 1.1 billion parameters by default. It trains as is usual: weights
and AdamW in float32, on a GPU with the forward pass in bfloat16, on random tokens. Blocks of steps with ``observe``
alternate with blocks without. They are timed as a whole, so that a step may overlap with the next one. Then
``finish()`` is called twice, and the second call is timed. Bytes are those that torch has allocated on the GPU; on a
CPU there are none.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, __version__

from forgetless import FPF
from forgetless.repair.report import Report
from provenance import provenance, publish

VOCABULARY = 32_000
CAPACITY = 200  # sequences in the buffer


class Training:
    """The loop of a user: a model, its optimizer and random tokens."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self._batch, self._length = arguments.device, arguments.batch, arguments.length
        self.autocast = torch.bfloat16 if self.device == "cuda" else None
        self.vocabulary = min(VOCABULARY, 16 * arguments.hidden)
        config = LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=arguments.hidden, intermediate_size=4 * arguments.hidden,
            num_hidden_layers=arguments.layers, num_attention_heads=max(1, arguments.hidden // 64),
            num_key_value_heads=max(1, arguments.hidden // 256), max_position_embeddings=arguments.length,
            use_cache=False,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(self.device):
            self.model = LlamaForCausalLM(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=self.device == "cuda")
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> Tensor:
        """Train on new random tokens and return them."""
        tokens = torch.randint(self.vocabulary, (self._batch, self._length), device=self.device)
        with torch.autocast(self.device, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            loss = self.model(input_ids=tokens, labels=tokens).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return tokens

    def fpf(self, **mode: Any) -> FPF:
        """Return an FPF around the model, whose repairs have the batch size of the training."""
        return FPF(self.model, CAPACITY, loss="model", autocast=self.autocast, batch=self._batch, **mode)

    def block(self, steps: int, fpf: FPF | None) -> float:
        """Return the milliseconds per step of a block of steps, with or without ``observe``."""
        start = self.clock()
        for _ in range(steps):
            tokens = self.step()
            if fpf is not None:
                fpf.observe({"input_ids": tokens}, tokens)
        return 1000 * (self.clock() - start) / steps

    def clock(self) -> float:
        """Return the time at which all work so far is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def allocated(self) -> int | None:
        """Return the bytes that torch has allocated on the GPU."""
        gc.collect()  # an FPF that is no longer used
        return torch.cuda.memory_allocated() if self.device == "cuda" else None

    def peak(self) -> float | None:
        """Return the highest number of GiB allocated on the GPU since the last call."""
        if self.device != "cuda":
            return None
        highest = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        return round(highest, 2)

    def kept(self, without: int | None) -> float | None:
        """Return the bytes per parameter on the GPU beyond those ``without`` an FPF."""
        now = self.allocated()
        return None if now is None or without is None else round((now - without) / self.parameters, 4)


def overhead(training: Training, blocks: int, steps: int, **mode: Any) -> dict[str, Any]:
    """Return the time of a step with and without ``observe``, and the memory that the FPF keeps on the GPU."""
    without = training.allocated()
    fpf = training.fpf(**mode)
    start = training.clock()
    fpf.settle()  # copies the weights once more, into memory that is now allocated
    copied = training.clock() - start
    training.block(2, fpf)  # tries the forward pass and opens the buffer
    plain, observed = [], []
    for _ in range(blocks):
        plain.append(training.block(steps, None))
        observed.append(training.block(steps, fpf))
    return {
        "step_ms": round(median(plain), 3),
        "step_with_fpf_ms": round(median(observed), 3),
        "overhead_percent": round(100 * (median(observed) / median(plain) - 1), 3),
        "plain_blocks_ms": [round(value, 3) for value in plain],
        "observed_blocks_ms": [round(value, 3) for value in observed],
        "snapshot_seconds": round(copied, 3),
        "kept_bytes_per_parameter": training.kept(without),
    }


def repair(training: Training) -> dict[str, Any]:
    """Return the time and the memory of a second ``finish()``; the first one also allocates host memory."""
    without = training.allocated()
    fpf = training.fpf()
    for _ in range(2):
        training.block(2, fpf)
        training.peak()
        start = training.clock()
        report = fpf.finish()
        seconds = training.clock() - start
    assert isinstance(report, Report)
    return {
        "seconds": round(seconds, 3),
        "steps": report.tried,
        "held_out": report.held_out,
        "peak_gib": training.peak(),
        "kept_bytes_per_parameter": training.kept(without),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step, of training and of repairs")
    parser.add_argument("--length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--blocks", type=int, default=6, help="blocks with observe, and the same number without")
    parser.add_argument("--steps", type=int, default=10, help="steps per block")
    parser.add_argument("--window", type=int, help="also measure a schedule that compares windows of this many steps")
    parser.add_argument("--out", type=Path, help="also write the result to this JSON file")
    arguments = parser.parse_args()
    training = Training(arguments)
    training.block(3, None)  # warms up, and lets AdamW allocate its state
    training.peak()
    training.step()
    result: dict[str, Any] = {
        "parameters": training.parameters, "hidden": arguments.hidden, "layers": arguments.layers,
        "batch": arguments.batch, "length": arguments.length, "blocks": arguments.blocks, "steps": arguments.steps,
        "training_peak_gib": training.peak(),
        "budget": overhead(training, arguments.blocks, arguments.steps),
    }  # fmt: skip
    if arguments.window is not None:
        blocks, mode = max(1, arguments.blocks // 2), {"window": arguments.window, "device": "cpu"}
        result["schedule"] = overhead(training, blocks, arguments.window, **mode)  # each block ends one window
    result["repair"] = repair(training)
    publish(result | provenance(arguments.device) | {"transformers": __version__}, arguments.out)


if __name__ == "__main__":
    main()
