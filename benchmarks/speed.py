"""Measure the milliseconds of a training step, including gathering, augmentation, replay, update and buffer.

    python benchmarks/speed.py --device cuda --precision bf16 [--lanes 1,8] [--ways sgd,er] [--eager] [--out FILE]

Random images stand in for a data set. A run has two tasks. The timed steps are in the second task, when the buffer is
full and everything is compiled and captured. With several lanes the time is per run and step. ``finetuning`` is a step
of k-FPF on all groups but block4. ``seconds_before`` is the time until the first timed step, including compilation.
Results are written as they arrive, and cases that are already in FILE are skipped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from forgetless import Finetune, networks, train
from forgetless.compute.engine import Engine
from forgetless.config import catalogue
from forgetless.data.stream import Split, Stream, Task
from forgetless.experiments.lanes import interleave
from forgetless.networks.seed import with_seed
from forgetless.training.events import Stepped
from forgetless.training.loop import Run
from forgetless.training.repair import PROGRESS
from provenance import provenance

WAYS = ("sgd", "er", "der", "derpp", "agem", "icarl", "finetuning")
LR = 1e-4  # VGG-11 has no batch norm and diverges on random images with larger rates
SHAPES = {"resnet18": (3, 32), "resnet18_imagenet": (3, 224), "vgg11": (3, 32), "mlp": (1, 28)}


@lru_cache(1)
def random_stream(channels: int, size: int, first: int, second: int, device: torch.device) -> Stream:
    """Return a stream of two tasks of random images."""
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for number, count in enumerate((first, second)):
        y = torch.tensor([2 * number, 2 * number + 1]).repeat(count // 2)
        x = torch.randint(256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
        tasks.append(Task(Split(x, y), Split(x[:100], y[:100]), (2 * number, 2 * number + 1)))
    normal = ((0.5,) * channels, (0.25,) * channels, size // 8, True) if channels == 3 else ((), (), 0, False)
    return Stream("random", tuple(tasks), 10, "class", *normal).to(device)


def starter(way: str, stream: Stream, arguments: argparse.Namespace, capture: bool, seed: int) -> Callable[[], Run]:
    """Return a function that starts a run."""

    def start() -> Run:
        network: Any = with_seed(lambda: getattr(networks, arguments.network)(10), seed)
        if arguments.compile:
            network = torch.compile(network, dynamic=False)  # a run has only three batch sizes
        method = catalogue.load("method", "sgd" if way == "finetuning" else way)()
        finetune = None
        if way == "finetuning":
            groups = (
                ("conv1", "block1", "block2", "block3", "bn.affine", "bn.stats", "fc")
                if arguments.network.startswith("resnet")
                else ("fc2", "fc3")
            )
            finetune = Finetune.k_fpf(stream_steps(stream, arguments.batch) - 5, steps=10**6, groups=groups, lr=1e-4)
        return train(
            stream, method, network, epochs=1, batch=arguments.batch, lr=LR, buffer=500,
            finetune=finetune, seed=seed, device=arguments.device, precision=arguments.precision, capture=capture,
        )  # fmt: skip

    return start


def stream_steps(stream: Stream, batch: int) -> int:
    """Return the steps of the first task."""
    return len(stream.tasks[0].train) // batch


def measure(way: str, lanes: int, capture: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the time and the memory of one case."""
    cuda, batch = arguments.device == "cuda", arguments.batch
    channels, size = SHAPES[arguments.network]
    size = arguments.size or size
    first = -(-600 // batch)  # steps of the first task, which fill the buffer
    settle, steps = (40, arguments.steps) if cuda and capture else (10, arguments.steps)
    second = settle + steps + 80
    stream = random_stream(
        channels, size, 2 * -(-first * batch // 2), 2 * -(-second * batch // 2), torch.device(arguments.device)
    )
    # Progress events before the first timed step.
    begin = settle // PROGRESS + (0 if way == "finetuning" else first // PROGRESS)
    end = begin + steps // PROGRESS
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
    counts = dict.fromkeys(range(lanes), 0)
    began, started, passed = time.perf_counter(), 0.0, 0.0
    at_start = 0
    runs = interleave([starter(way, stream, arguments, capture, seed) for seed in range(lanes)], lanes)
    for number, event in runs:
        if (
            way == "finetuning"
            and isinstance(event, Stepped)
            and event.step < stream_steps(stream, arguments.batch) - 5
        ):
            continue
        counts[number] += isinstance(event, Stepped)
        if not started and min(counts.values()) >= begin:
            if cuda:
                torch.cuda.synchronize()
            started, at_start = time.perf_counter(), sum(counts.values())
        if started and min(counts.values()) >= end:
            if cuda:
                torch.cuda.synchronize()
            passed = time.perf_counter() - started
            break
    runs.close()
    milliseconds = 1000 * passed / ((sum(counts.values()) - at_start) * PROGRESS)
    images = arguments.batch / milliseconds * 1000
    row: dict[str, Any] = {
        "network": arguments.network, "size": size, "batch": arguments.batch, "precision": arguments.precision,
        "way": way, "captured": capture and cuda, "lanes": lanes, "milliseconds": round(milliseconds, 4),
        "images_per_second": round(images), "seconds_before": round(started - began, 1),
    }  # fmt: skip
    if arguments.compile or not cuda:
        row["compile"] = arguments.compile
    if not cuda:
        row["threads"] = arguments.threads
        row |= {"onednn": True} if arguments.onednn else {}
    if cuda:
        row["megabytes_per_lane"] = round((torch.cuda.max_memory_reserved() - before) / lanes / 2**20)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--network", default="resnet18", choices=list(SHAPES))
    parser.add_argument("--size", type=int, help="height and width of the images (default: by the network)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--lanes", default="1")
    parser.add_argument("--repeat", type=int, default=1, help="number of measurements, of which the shortest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads on a CPU")
    parser.add_argument("--compile", action="store_true", help="compile the network with torch.compile")
    parser.add_argument(
        "--onednn", action="store_true", help="on Arm: compute an MLP with oneDNN, as torch does by default"
    )
    parser.add_argument("--eager", action="store_true", help="also measure one lane without capturing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    commands: list[str] = []
    if arguments.out and arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        rows, commands = before["rows"], before["commands"]
    origin = provenance(arguments.device)
    commands.append(origin.pop("command"))
    names = ("network", "size", "batch", "precision", "way", "captured", "lanes", "threads", "compile", "onednn")
    known = {tuple(row.get(name) for name in names) for row in rows}
    cuda = arguments.device == "cuda"
    options = (None, arguments.compile or None) if cuda else (arguments.threads, arguments.compile)
    torch.set_num_threads(arguments.threads)
    if arguments.onednn:
        Engine.adapt = lambda *_, **__: None  # type: ignore[method-assign]
    cases = [(way, 1, False) for way in arguments.ways.split(",") if arguments.eager or not cuda]
    cases += [(way, int(n), True) for way in arguments.ways.split(",") for n in arguments.lanes.split(",") if cuda]
    for way, lanes, capture in cases:
        size = arguments.size or SHAPES[arguments.network][1]
        key = (
            arguments.network,
            size,
            arguments.batch,
            arguments.precision,
            way,
            capture,
            lanes,
            *options,
            arguments.onednn or None,
        )
        if key in known:
            continue
        attempts = [measure(way, lanes, capture, arguments) for _ in range(arguments.repeat)]
        row = min(attempts, key=lambda row: row["milliseconds"])
        row["seconds_before"] = attempts[0]["seconds_before"]  # the later ones use what the first one compiled
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"rows": rows, "commands": commands, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
