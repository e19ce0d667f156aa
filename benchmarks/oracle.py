"""Measure which score of a group of parameters predicts what repairing that group alone recovers.

    python benchmarks/oracle.py --out benchmarks/records/oracle.json [--workers 14] [--tiny]

Each run trains a network on an old task and then on a new one, which makes it forget the old one. A buffer holds 256
training examples of each task, of which an eighth is held out. The oracle finetunes every group alone on the buffer,
with the optimiser and the learning rate that reach the lowest loss on the held-out examples, and measures the loss on
the old task's test set. The scores of scores.py are computed before, from the weights and the buffer.

The record is written after each run, and finished runs are skipped. The networks and tasks are in pairs.py.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import forgetless
from forgetless.repair.freezing import movable, only
from pairs import PAIRS, Examples, Task, Transformer, add_adapters
from provenance import provenance
from scores import State, displacement_scores, gradient_scores, load, loss, state

HELD_OUT = 8  # one in eight examples of the buffer is held out
SHORT_TRIAL = 5  # steps
FINALISTS = 2  # candidates that a search runs for all steps
SEEDS = 3
SETS = (
    "eq1",
    "buffer.taylor",
    "buffer.absolute",
    "buffer.adam_line",
    "trial5",
)  # scores whose sets of groups are repaired


class Candidate(NamedTuple):
    """The optimiser and the learning rate of a repair."""

    optimizer: str
    lr: float


CANDIDATES = (
    *(Candidate("SGD", lr) for lr in (0.01, 0.03, 0.1, 0.3)),
    *(Candidate("Adam", lr) for lr in (3e-4, 1e-3, 3e-3, 1e-2)),
)


class Size(NamedTuple):
    """How large a study is."""

    buffer: int  # examples per task
    batch: int
    steps: int  # of a repair
    trial: int  # steps
    candidates: tuple[Candidate, ...]
    training: float  # share of the steps of a pair
    tested: int  # examples per task


FULL = Size(256, 32, 100, 15, CANDIDATES, 1.0, 1000)
TINY = Size(16, 4, 7, 6, (Candidate("SGD", 0.1), Candidate("Adam", 1e-3)), 0.01, 16)


class Bench(NamedTuple):
    """A network that forgot, its buffer, the held-out part of the buffer, and the test sets."""

    network: nn.Module
    after: State
    repaired_on: Examples
    held_out: Examples
    old: Examples
    new: Examples
    size: Size


class Repaired(NamedTuple):
    """The result of a repair: the chosen candidate, the losses on the test sets and the accuracy on the old one."""

    candidate: Candidate
    old: float
    repeat: float
    new: float
    accuracy: float
    short: float  # the loss on the old test set after a quarter of the steps
    trials: dict[str, list[float]]  # by candidate, the fall of the held-out loss in a short trial and in a longer one


def train(
    network: nn.Module, task: Task, optimizer: str, lr: float, steps: int, batch: int, generator: torch.Generator
) -> None:
    """Train on random batches of a task, with a learning rate that warms up."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    descent = torch.optim.SGD(parameters, lr) if optimizer == "SGD" else torch.optim.AdamW(parameters, lr)
    network.train()
    batches = torch.randint(len(task.train.x), (steps, batch), generator=generator).to(task.train.x.device)
    for step, rows in enumerate(batches):
        for settings in descent.param_groups:
            settings["lr"] = lr * min(1.0, (step + 1) / 50)
        descent.zero_grad()
        F.cross_entropy(network(task.train.x[rows]), task.train.y[rows]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        descent.step()


def finetune(
    bench: Bench, names: Collection[str], candidate: Candidate, steps: int, length: int, seed: int
) -> dict[int, float]:
    """Finetune the named tensors from the forgetful weights, for the first steps of a schedule of some length.

    Return the held-out loss after a short trial, if it is that long, and at the end.
    """
    load(bench.network, bench.after)
    bench.network.eval()
    x, y = bench.repaired_on
    batches = torch.randint(len(x), (steps, bench.size.batch), generator=torch.Generator().manual_seed(seed)).to(
        x.device
    )
    losses = {}
    for begin, end in ((0, SHORT_TRIAL), (SHORT_TRIAL, steps)):
        with only(bench.network, names) as parameters:
            if begin == 0:
                kind = torch.optim.SGD if candidate.optimizer == "SGD" else torch.optim.Adam
                descent = kind(parameters, candidate.lr)
            for step in range(begin, end):
                descent.param_groups[0]["lr"] = candidate.lr * (1 + math.cos(math.pi * step / length)) / 2
                descent.zero_grad()
                F.cross_entropy(bench.network(x[batches[step]]), y[batches[step]]).backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                descent.step()
        losses[end] = finite(loss(bench.network, bench.held_out))
    return losses


def finite(value: float) -> float:
    return value if math.isfinite(value) else 1e9


def repair(bench: Bench, names: Collection[str]) -> Repaired:
    """Search the candidates by short trials, repair with the best two of them, and measure the better one."""
    load(bench.network, bench.after)
    start = loss(bench.network, bench.held_out)
    steps, trial_steps, candidates = bench.size.steps, bench.size.trial, bench.size.candidates
    trials = {candidate: finetune(bench, names, candidate, trial_steps, steps, seed=0) for candidate in candidates}
    finals = {}
    for candidate in sorted(candidates, key=lambda candidate: trials[candidate][trial_steps])[:FINALISTS]:
        held_out = finetune(bench, names, candidate, steps, steps, seed=1)[steps]
        finals[candidate] = held_out, measure(bench)
    best = min(finals, key=lambda candidate: finals[candidate][0])
    old, new, accuracy = finals[best][1]
    finetune(bench, names, best, steps, steps, seed=2)
    repeat = loss(bench.network, bench.old)
    quarter = max(steps // 4, SHORT_TRIAL + 1)
    finetune(bench, names, min(trials, key=lambda c: trials[c][trial_steps]), quarter, quarter, seed=1)
    short = loss(bench.network, bench.old)
    load(bench.network, bench.after)
    falls = {f"{c.optimizer} {c.lr:g}": [start - value for value in losses.values()] for c, losses in trials.items()}
    return Repaired(best, old, repeat, new, accuracy, short, falls)


@torch.no_grad()
def measure(bench: Bench) -> tuple[float, float, float]:
    """Return the losses on the old and the new test set and the accuracy on the old one, in percent."""
    old, new = loss(bench.network, bench.old), loss(bench.network, bench.new)
    chunks = zip(bench.old.x.split(256), bench.old.y.split(256), strict=True)
    hits = torch.cat([(bench.network(x).argmax(1) == y).flatten() for x, y in chunks])
    return old, new, 100 * float(hits.float().mean())


def units(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the groups that are not frozen. A normalisation's weights and statistics are repaired together."""
    merged: dict[str, tuple[str, ...]] = {}
    for group, names in forgetless.groups(network).items():
        unit = group.replace(".affine", "").replace(".stats", "")
        if names := movable(network, names):
            merged[unit] = merged.get(unit, ()) + names
    return merged


def set_of(scores: Mapping[str, float], share: float = 0.9) -> tuple[str, ...]:
    """Return the smallest set of groups that holds a share of the sum of the positive scores."""
    positive = {group: score for group, score in scores.items() if score > 0}
    total, chosen = sum(positive.values()), []  # type: float, list[str]
    for group in sorted(positive, key=positive.__getitem__, reverse=True):
        if sum(positive[name] for name in chosen) >= share * total:
            break
        chosen.append(group)
    return tuple(group for group in scores if group in chosen)


def run(pair_name: str, seed: int, tiny: bool) -> dict[str, Any]:
    """Train, score, repair each group alone and sets of groups, and return what was measured."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    pair = PAIRS[pair_name]
    device = "cuda" if pair.cuda and torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tasks = pair.tasks(generator)
    stride = pair.tiny_stride if tiny else 1
    old, new = (Task(*(examples.to(device, stride) for examples in task)) for task in tasks[:2])
    network = pair.network(pair.tiny_width if tiny else pair.width).to(device)
    size = TINY if tiny else FULL
    old_steps, new_steps, pretraining_steps = (int(size.training * n) for n in (*pair.steps, pair.pretraining_steps))
    if tasks.pretraining and pretraining_steps:
        pretraining = Task(tasks.pretraining.train.to(device), tasks.pretraining.test)
        train(network, pretraining, "AdamW", 1e-3, pretraining_steps, size.batch, generator)
        assert isinstance(network, Transformer)
        add_adapters(network)
        network.to(device)
    train(network, old, pair.optimizer, pair.lr, old_steps, size.batch, generator)
    network.eval()
    before = state(network)
    train(network, new, pair.optimizer, pair.lr, new_steps, size.batch, generator)
    network.eval()
    after = state(network)

    kept = [task.train.rows(slice(0, size.buffer)) for task in (old, new)]  # the training sets are in random order
    buffer = Examples(*(torch.cat(columns) for columns in zip(*kept, strict=True)))
    out = torch.arange(len(buffer.x), device=device) % HELD_OUT == 0
    tests = tuple(task.test.rows(slice(0, size.tested)) for task in (old, new))
    bench = Bench(network, after, buffer.rows(~out), buffer.rows(out), tests[0], tests[1], size)
    grouping = units(network)
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    sizes = {group: sum(after[name].numel() for name in names if name in trained) for group, names in grouping.items()}
    result: dict[str, Any] = {"pair": pair_name, "seed": seed, "parameters": sizes}
    forgot = measure(bench)
    load(network, before)
    result["before"], result["after"] = measure(bench), forgot

    scores = displacement_scores(before, after, grouping, trained)
    for kind, examples in (("old", kept[0]), ("buffer", buffer)):
        found = gradient_scores(network, before, after, grouping, examples)
        scores |= {f"{kind}.{name}": values for name, values in found.items()}
    repairs, restored = {}, {}
    for group, names in grouping.items():
        load(network, after | {name: before[name] for name in names})
        restored[group] = forgot[0] - loss(network, bench.old)
        repairs[group] = repair(bench, names)
    trials = {group: repaired.trials for group, repaired in repairs.items()}
    for index, length in enumerate((SHORT_TRIAL, size.trial)):
        fall = {group: {name: falls[index] for name, falls in trials[group].items()} for group in trials}
        scores[f"trial{length}"] = {group: max(fall[group].values()) for group in fall}
        for name in ("Adam 0.001", "SGD 0.1"):
            scores[f"trial{length} {name}"] = {group: fall[group][name] for group in fall}
    result |= {
        "recovered": {
            group: [forgot[0] - repaired.old, forgot[0] - repaired.repeat] for group, repaired in repairs.items()
        },
        "accuracy": {group: repaired.accuracy for group, repaired in repairs.items()},
        "candidates": {group: list(repaired.candidate) for group, repaired in repairs.items()},
        "short": {group: forgot[0] - repaired.short for group, repaired in repairs.items()},
        "restored": restored,
        "scores": scores,
        "trials": trials,
    }
    sets = {tuple(grouping)}
    for score in SETS[:1] if tiny else SETS:
        ranked = sorted(grouping, key=scores[score].__getitem__, reverse=True)
        half = ranked[: len(ranked) // 2]
        sets |= {set_of(scores[score]), tuple(group for group in grouping if group in half)}
    result["sets"] = {}
    for chosen in sorted(chosen for chosen in sets if len(chosen) > 1):
        whole = repair(bench, [name for group in chosen for name in grouping[group]])
        result["sets"]["+".join(chosen)] = [forgot[0] - whole.old, forgot[0] - whole.repeat, whole.accuracy, whole.new]
    result["seconds"] = time.perf_counter() - begin
    return rounded(result)  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    """Return numbers with four significant figures, inside lists and mappings."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def ranks(values: list[float]) -> list[float]:
    """Return the rank of each value, the mean rank for equal ones."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant."""
    columns = torch.tensor([ranks(list(left)), ranks(list(right))], dtype=torch.float64)
    columns -= columns.mean(1, keepdim=True)
    scale = columns.norm(dim=1).prod()
    return float((columns[0] * columns[1]).sum() / scale) if scale > 0 else 0.0


def correlation(run: Mapping[str, Any], score: str, per_parameter: bool = False) -> float:
    """Return the rank correlation of a score of the groups with what repairing each alone recovered.

    "equal" is a score that is the same for every group. Per parameter, it shows what the sizes alone predict. "short"
    is what a repair with a quarter of the steps recovers.
    """
    sizes = run["parameters"] if per_parameter else dict.fromkeys(run["parameters"], 1)
    if score == "repeat":  # of the oracle with itself
        return spearman(*([run["recovered"][g][i] / sizes[g] for g in sizes] for i in (0, 1)))
    values = {
        **run["scores"],
        "equal": dict.fromkeys(sizes, 1.0),
        **{name: run[name] for name in ("restored", "short")},
    }[score]
    return spearman([values[g] / sizes[g] for g in sizes], [mean(run["recovered"][g]) / sizes[g] for g in sizes])


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the correlations of every score with the oracle, best first: overall and by pair."""
    pairs = list(dict.fromkeys(run["pair"] for run in runs))
    lines = []
    for score in ["repeat", "restored", "equal", *runs[0]["scores"]]:
        by_pair = [mean(correlation(run, score) for run in runs if run["pair"] == pair) for pair in pairs]
        per_parameter = mean(correlation(run, score, per_parameter=True) for run in runs)
        cells = " ".join(f"{value:6.2f}" for value in by_pair)
        lines.append(
            (mean(by_pair), f"{score:28} {mean(by_pair):6.2f} {min(by_pair):6.2f} {per_parameter:6.2f} | {cells}")
        )
    header = f"{'score':28} {'mean':>6} {'min':>6} {'/par':>6} | " + ", ".join(pairs)
    return "\n".join([header, *(line for _, line in sorted(lines, reverse=True))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/oracle.json"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), choices=list(PAIRS), metavar="PAIR")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--tiny", action="store_true", help="small networks and a tenth of the steps, for a test")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": []}
    size = TINY if arguments.tiny else FULL
    settings = json.loads(json.dumps({**size._asdict(), "held_out": HELD_OUT}))
    record = {**settings, "workers": arguments.workers, **provenance(device), "runs": []}
    if all(known.get(key) == value for key, value in settings.items()):
        record["runs"] = known["runs"]
    done = {(entry["pair"], entry["seed"]) for entry in record["runs"]}
    jobs = [(pair, seed) for seed in range(arguments.seeds) for pair in arguments.pairs if (pair, seed) not in done]
    context = multiprocessing.get_context("spawn")
    failed = []
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        futures = {pool.submit(run, *job, arguments.tiny): job for job in jobs}
        for future in as_completed(futures):
            if error := future.exception():
                failed.append(futures[future])
                print(f"{futures[future]} failed: {error!r}", flush=True)
                continue
            result = future.result()
            record["runs"] = sorted([*record["runs"], result], key=lambda r: (list(PAIRS).index(r["pair"]), r["seed"]))
            write(record, arguments.out)
            print(f"{result['pair']}, seed {result['seed']}: {result['seconds']:.0f} s", flush=True)
    if record["runs"]:
        print(table(record["runs"]))
    if failed:
        sys.exit(f"{len(failed)} of {len(jobs)} runs failed: run the command again for these")


def write(record: Mapping[str, Any], out: Path) -> None:
    """Write the record with one line per run."""
    head = {key: value for key, value in record.items() if key != "runs"}
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in record["runs"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "runs": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
