"""Measure whether one computation for several lanes is faster than the lanes on streams of their own.

    python benchmarks/fused.py [--lanes 8] [--batches 32,64] [--seconds 420] [--out FILE]

The parts of a training step of ResNet-18 on 32×32 images in bf16 are timed one by one: every shape of a convolution,
forward and backward; batch norm with residual and ReLU; augmentation; cross-entropy; update. ``streams`` is what runs
side by side do today: one CUDA graph and one stream per lane, with cuDNN (which searches for its fastest kernels) or
forgetless's kernels. The other variants compute all lanes at once (``fused_convolutions.py``, ``fused_parts.py``).
``whole step`` is a step of SGD in lanes, measured as in ``speed.py``; its pooling and linear layer are not timed alone.

First each variant is compared with a reference in fp32: for each lane, ‖result − reference‖ / ‖reference‖ is at most
0.01 in bf16, and 0.0001 in fp32. A variant that deviates more, or that raises an error, is recorded with that and not
timed. Then its graph, which computes it for several sets of inputs that together exceed the L2 cache, is replayed, and
the median time counts. The GPU is kept busy until all replays are queued, so that launches are not timed.

Results are written as they arrive, and cases that are already in FILE are skipped. ``--device cpu`` checks all variants
in fp32 and times single calls; the Triton kernels take part if TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

import speed
from forgetless.compute.engine import wake_autograd
from forgetless.compute.graphs import Graphs
from forgetless.compute.precision import cuda_switches, switched
from fused_parts import problems
from fused_problem import STREAMS, Problem, Result, Work
from provenance import provenance

TOLERANCES = {torch.bfloat16: 1e-2, torch.float32: 1e-4}
GOAL = 1.3  # fused lanes are worth building if they are at least this many times as fast
REPLAYS, GRAPH_MICROSECONDS, GRAPH_CALLS = 7, 3000, 64  # aim and limit of one graph
SETS = 8  # the most sets of inputs
SLEEP = 4_000_000  # clock cycles, about 2 ms: enough to queue the replays of all lanes
ANY_LAYOUT = {"one batch", "one list", "stacked"}
LAYOUTS = {  # variants that fit together without copies between them; streams read lanes first too
    "lanes first": {STREAMS, "triton", "matrix products", "shifted products", "vmap", *ANY_LAYOUT},
    "lanes in the channels": {"grouped, channels last", "all channels", *ANY_LAYOUT},
}
SHAPES = {"lanes": "lanes", "batches": "batch"}  # options and their names in a row

Row = dict[str, Any]


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what distinguishes a case from the others."""
    return tuple(row[name] for name in ("lanes", "batch", "part", "problem", "direction", "variant"))


def part_of(row: Row) -> tuple[int, int, str]:
    """Return the lanes, the batch and the part of a case."""
    return row["lanes"], row["batch"], row["part"]


def deviation(results: Result, references: Result) -> float:
    """Return the largest relative difference of a lane; NaN if a result has one."""
    for result, reference in zip(results, references, strict=True):
        if result.shape != reference.shape:
            raise ValueError(f"a result has shape {tuple(result.shape)}; it must be {tuple(reference.shape)}")
    pairs = [(x.float().reshape(len(x), -1), y.reshape(len(y), -1)) for x, y in zip(results, references, strict=True)]
    return float(torch.stack([((x - y).norm(dim=1) / y.norm(dim=1)).amax() for x, y in pairs]).amax())


def check(work: Work, references: Result, variant: str, dtype: torch.dtype) -> float:
    """Return the deviation of a variant. Memory that it may get for its results holds NaN before."""
    poison = [
        torch.full_like(tensor, torch.nan, dtype=kind) for tensor in references for kind in {dtype, torch.float32}
    ]
    del poison
    results = [compute() for compute in work]
    if variant == STREAMS:
        return deviation(tuple(torch.stack(lanes) for lanes in zip(*results, strict=True)), references)
    return deviation(results[0], references)


def measure(works: Sequence[Work], generators: Sequence[torch.Generator], device: torch.device) -> float:
    """Return the microseconds in which all lanes compute a variant; ``works`` has one entry for each set of inputs."""
    if device.type == "cpu":
        began = time.perf_counter()
        for compute in works[0]:
            compute()
        return 1e6 * (time.perf_counter() - began)
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in works[0]]
    graphs = [Graphs(device, generators) for _ in streams]

    def compute_rounds(number: int, rounds: int) -> None:
        for _ in range(rounds):
            for work in works:
                work[number]()

    def replay(rounds: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP)
        begin.record()
        for number, stream in enumerate(streams):
            stream.wait_event(begin)
            with torch.cuda.stream(stream):
                graphs[number].call(rounds, partial(compute_rounds, number, rounds))
        for stream in streams:
            main.wait_stream(stream)
        end.record()
        end.synchronize()
        microseconds: float = 1000 * begin.elapsed_time(end)
        return microseconds

    def settled(rounds: int) -> float:
        replay(rounds)  # a plain call
        replay(rounds)  # the capture
        return replay(rounds)

    rounds = int(max(1, min(GRAPH_MICROSECONDS / settled(1), GRAPH_CALLS / len(works))))
    if rounds > 1:
        settled(rounds)
    return median(replay(rounds) for _ in range(REPLAYS)) / (rounds * len(works))


def sets_of_inputs(problem: Problem) -> list[SimpleNamespace]:
    """Return sets of inputs that together take twice the L2 cache of the GPU, but at most ``SETS`` of them."""
    first = problem.inputs(0)
    if problem.device.type == "cpu":
        return [first]
    tensors = [t for value in vars(first).values() for t in (value if isinstance(value, list) else [value])]
    size = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    cache = torch.cuda.get_device_properties(problem.device).L2_cache_size
    return [first, *(problem.inputs(1000 * number) for number in range(1, min(SETS, -(-2 * cache // size))))]


def measure_variant(problem: Problem, sets: Sequence[SimpleNamespace], direction: str, variant: str) -> Row:
    """Return the time of the fastest choice of a variant, and the errors of those that failed."""
    cudnn, cuda = torch.backends.cudnn, problem.device.type == "cuda"
    exact = cuda_switches("fp32", deterministic=False) if cuda else []
    usual = [*cuda_switches("bf16", deterministic=False), (cudnn, "benchmark", True)] if cuda else []
    times: dict[str, float] = {}
    deviations: dict[str, float] = {}
    errors: dict[str, str] = {}
    choice = ""
    try:
        with switched(exact):
            references = problem.reference(sets[0], direction, variant)
        prepared = [problem.variants()[variant](problem, inputs, direction) for inputs in sets]
        generators = [generator for inputs in sets for generator in getattr(inputs, "generators", ())]
        for choice in prepared[0]:
            try:
                with switched(usual):
                    works = [alternatives[choice] for alternatives in prepared]
                    deviations[choice] = check(works[0], references, variant, problem.dtype)
                    if deviations[choice] <= TOLERANCES[problem.dtype]:
                        times[choice] = measure(works, generators, problem.device)
                    else:
                        errors[choice] = f"wrong: deviates by {deviations[choice]:.2g}"
            except Exception as error:  # one choice that a GPU does not support must not stop the others
                errors[choice] = describe(error)
    except Exception as error:  # nor may a variant
        errors[choice] = describe(error)
    row: Row = {"errors": errors} if errors else {}
    if times:
        fastest = min(times, key=lambda name: times[name])
        row |= {"microseconds": round(times[fastest], 2), "deviation": float(f"{deviations[fastest]:.2g}")}
        row |= {"choices": {name: round(value, 2) for name, value in times.items()}} if len(times) > 1 else {}
    return row


def describe(error: Exception) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def measure_whole_step(lanes: int, batch: int) -> Row:
    """Return the time in which all lanes take one step of SGD, each on a stream of its own."""
    case = argparse.Namespace(
        network="resnet18", size=None, batch=batch, steps=200, device="cuda", precision="bf16", compile=False,
        threads=1, onednn=False,
    )  # fmt: skip
    try:
        milliseconds = speed.measure("sgd", lanes, True, case)["milliseconds"]
    except RuntimeError as error:  # such as a lack of memory
        return {"errors": {"": describe(error)}}
    return {"microseconds": round(1000 * lanes * milliseconds, 2)}


def cases(arguments: argparse.Namespace) -> Iterable[tuple[Row, Callable[[], Row]]]:
    """Yield the key of each case and the function that measures it."""
    device = torch.device(arguments.device)
    for batch in map(int, arguments.batches.split(",")):
        for lanes in map(int, arguments.lanes.split(",")):
            shape = {"lanes": lanes, "batch": batch}
            for problem in problems(arguments.width, arguments.size, lanes, batch, device):
                sets: list[SimpleNamespace] = []

                def measured(problem: Problem, sets: list[SimpleNamespace], direction: str, variant: str) -> Row:
                    if not sets:
                        sets += sets_of_inputs(problem)
                    return measure_variant(problem, sets, direction, variant)

                named = {"part": problem.part, "problem": problem.name, "occurrences": problem.occurrences}
                for direction in problem.directions:
                    for variant in problem.variants():
                        key = {**shape, **named, "direction": direction, "variant": variant}
                        yield key, partial(measured, problem, sets, direction, variant)
            if device.type == "cuda" and (arguments.width, arguments.size) == (64, 32):
                named = {"part": "whole step", "problem": "SGD", "occurrences": 1}
                key = {**shape, **named, "direction": "step", "variant": STREAMS}
                yield key, partial(measure_whole_step, lanes, batch)


def finished(rows: Sequence[Row], arguments: argparse.Namespace) -> list[Row]:
    """Return the rows of the parts of which all cases were measured."""
    seen = {name: ",".join(dict.fromkeys(str(row[key]) for row in rows)) for name, key in SHAPES.items()}
    measured = {key_of(row) for row in rows}
    wanted = cases(argparse.Namespace(**{**vars(arguments), **seen})) if rows else ()
    unfinished = {part_of(key) for key, _ in wanted if key_of(key) not in measured}
    return [row for row in rows if part_of(row) not in unfinished]


def total(rows: Sequence[Row], variants: set[str]) -> float | None:
    """Return the milliseconds per step of a part with the fastest of these variants in each case; ``None`` without."""
    fastest: dict[tuple[str, str], float | None] = {}
    for row in rows:
        case = (row["problem"], row["direction"])
        known = fastest.setdefault(case, None)
        if row["variant"] in variants and "microseconds" in row:
            time_of_all = row["occurrences"] * row["microseconds"] / 1000
            fastest[case] = time_of_all if known is None else min(known, time_of_all)
    times = [value for value in fastest.values() if value is not None]
    return sum(times) if len(times) == len(fastest) else None


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return the milliseconds per step of each part by variant, and how many times as fast as streams the best is.

    The best mix of a layout takes the fastest of its variants for each shape and direction.
    """
    summary = []
    for lanes, batch, part in dict.fromkeys(map(part_of, rows)):
        own = [row for row in rows if part_of(row) == (lanes, batch, part)]
        groups = {name: {name} for name in dict.fromkeys(row["variant"] for row in own)}
        if len(groups) > 1:
            groups |= {best_mix(layout): variants for layout, variants in LAYOUTS.items()}
        milliseconds = {name: value for name, group in groups.items() if (value := total(own, group)) is not None}
        entry: Row = {"lanes": lanes, "batch": batch, "part": part, "milliseconds": milliseconds}
        candidates = {name: value for name, value in milliseconds.items() if name != STREAMS}
        if candidates and STREAMS in milliseconds:
            fastest = min(candidates, key=lambda name: candidates[name])
            entry |= {"fastest": fastest, "ratio": milliseconds[STREAMS] / candidates[fastest]}
        summary.append(entry)
    return summary


def best_mix(layout: str) -> str:
    """Return the name of the best mix of a layout."""
    return f"best mix, {layout}"


def print_tables(rows: Sequence[Row], summary: Sequence[Row]) -> None:
    """Print a table for each shape, the totals of each part, and whether fused lanes reach the goal."""
    for lanes, batch, part, problem in dict.fromkeys((*part_of(row), row["problem"]) for row in rows):
        own = [row for row in rows if (*part_of(row), row["problem"]) == (lanes, batch, part, problem)]
        directions = list(dict.fromkeys(row["direction"] for row in own))
        print(f"\n{part}: {problem}, {own[0]['occurrences']} per step; {lanes} lanes, batch {batch} (microseconds)")
        print(f"{'':36}" + "".join(f"{direction:>22}" for direction in directions))
        for variant in dict.fromkeys(row["variant"] for row in own):
            cells = {row["direction"]: row for row in own if row["variant"] == variant}
            print(f"{variant:36}" + "".join(f"{_cell(cells.get(direction)):>22}" for direction in directions))
    for lanes, batch in dict.fromkeys((entry["lanes"], entry["batch"]) for entry in summary):
        print(f"\nMilliseconds per step of all {lanes} lanes, batch {batch}")
        parts = {entry["part"]: entry for entry in summary if (entry["lanes"], entry["batch"]) == (lanes, batch)}
        for part, entry in parts.items():
            for name, value in entry["milliseconds"].items():
                print(f"{part:16}{name:36}{value:10.3f}")
        for part, entry in parts.items():
            if "ratio" in entry:
                print(f"{part}: {entry['fastest']} is {_verdict(entry['ratio'])}")
        times = [entry["milliseconds"] for entry in parts.values() if "ratio" in entry]
        apart = sum(milliseconds[STREAMS] for milliseconds in times)
        whole = parts.get("whole step", {}).get("milliseconds", {}).get(STREAMS)
        for layout in LAYOUTS:
            if times and all(best_mix(layout) in milliseconds for milliseconds in times):
                fused = sum(milliseconds[best_mix(layout)] for milliseconds in times)
                print(f"all parts, {layout}: {fused:.3f}, on streams {apart:.3f}: {_verdict(apart / fused)}")
                if whole:
                    print(f"    compared with the whole step, which takes {whole:.3f}: {_verdict(whole / fused)}")


def _cell(row: Row | None) -> str:
    """Return the time of a row, or what kept it from being measured."""
    if row is None:
        return "–"
    if "microseconds" in row:
        return f"{row['microseconds']:.1f}"
    return str(next(iter(row["errors"].values()))).partition(":")[0]


def _verdict(ratio: float) -> str:
    return f"{ratio:.2f} times as fast as streams, {'at least' if ratio >= GOAL else 'below'} {GOAL}"


def load(arguments: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Return the rows and commands that the record already has."""
    if not (arguments.out and arguments.out.exists()):
        return [], []
    before = json.loads(arguments.out.read_text())
    for name in ("width", "size"):
        if before[name] != getattr(arguments, name):
            raise SystemExit(
                f"{name} is {getattr(arguments, name)}, but {arguments.out} has {before[name]}; name a new file"
            )
    return before["rows"], before["commands"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", default="8")
    parser.add_argument("--batches", default="32,64")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--width", type=int, default=64, help="channels of the network's stem")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=420, help="start no measurement after this many seconds")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows, commands = load(arguments)
    origin = provenance(arguments.device)
    commands.append(origin.pop("command"))
    tolerance = TOLERANCES[torch.float32 if arguments.device == "cpu" else torch.bfloat16]
    origin |= {"width": arguments.width, "size": arguments.size, "tolerance": tolerance}
    known = {key_of(row) for row in rows}
    if arguments.device == "cuda":
        wake_autograd(torch.device("cuda"))
    for key, measured in cases(arguments):
        if key_of(key) in known:
            continue
        if time.perf_counter() - began > arguments.seconds:
            print(f"stopped after {arguments.seconds:.0f} s; the same command with the same FILE measures the rest")
            break
        rows.append(key | measured())
        print(f"{time.perf_counter() - began:.0f} s {json.dumps(rows[-1], ensure_ascii=False)}", flush=True)
        write({"rows": rows, "commands": commands, **origin}, arguments.out)
        if arguments.device == "cuda":
            release_memory()
    summary = summarise(finished(rows, arguments))
    write({"rows": rows, "summary": summary, "commands": commands, **origin}, arguments.out)
    print_tables(rows, summary)


def write(record: Row, out: Path | None) -> None:
    """Write the record to ``out`` if given."""
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


def release_memory() -> None:
    """Return the memory of a measured variant to the GPU; stop if an error has left the GPU unusable."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise SystemExit(f"{describe(error)}; the same command with the same FILE measures the rest") from None


if __name__ == "__main__":
    main()
