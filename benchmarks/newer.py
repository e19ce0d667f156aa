"""Measure what the settings of CLS-ER and X-DER RPC rest on.

    python benchmarks/newer.py published --work FOLDER [--out FILE]   # CLS-ER as its authors run it, on test images
    python benchmarks/newer.py averages --work FOLDER [--out FILE]    # CLS-ER's λ and decays, on validation
    python benchmarks/newer.py constraint [--out FILE]                # X-DER's past classes, on validation

``published`` repeats the authors' runs on Seq-MNIST. ``averages`` compares the candidates for the defaults of CLS-ER on
Seq-digits and Seq-MNIST, and ``constraint`` X-DER RPC with and without P on Seq-digits, with the settings of the stream
(``experiments/presets.toml``). The runs use one process with one thread. Finished runs in FOLDER are skipped.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from forgetless import networks, train
from forgetless.data import benchmarks as streams
from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunFailed
from forgetless.experiments.presets import preset_table
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.sweep import sweep
from forgetless.methods import xder_rpc
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended
from provenance import provenance, publish

AUTHORS_SEEDS = {500: 5, 200: 5}  # by the size of the buffer
AVERAGES_SEEDS = {"seq-digits": 3, "seq-mnist": 1}
CONSTRAINT_SEEDS = 5
CONSISTENCIES, DECAYS = (0.15, 0.5, 2.0), (0.99, 0.999)


def accuracies(runs: Sequence[Settings], work: Path) -> list[float]:
    """Train the runs that are not in a folder yet and return the accuracy of each."""
    for event in sweep([Planned(run, {}) for run in runs], work, Execution(workers=1, retry=True)):
        if isinstance(event, RunFailed):
            raise ValueError(f"{event.settings.label}, seed {event.settings.seed}: {event.error}")
    return [round(record.read(record.path(work, run)).accuracy, 2) for run in runs]


def published(work: Path) -> list[dict[str, Any]]:
    """Return the accuracies of CLS-ER on Seq-MNIST with the settings of its authors."""
    rows = []
    for buffer, seeds in AUTHORS_SEEDS.items():
        authors = preset_table("method_authors")["seq-mnist"]["cls_er"]
        given = {name: value[str(buffer)] if isinstance(value, Mapping) else value for name, value in authors.items()}
        runs = [resolve("seq-mnist", "cls_er", {"buffer": buffer, **given, "seed": seed})[0] for seed in range(seeds)]
        rows.append({"stream": "seq-mnist", "buffer": buffer, **given, "accuracies": accuracies(runs, work)})
        print(rows[-1], flush=True)
    return rows


def averages(work: Path) -> list[dict[str, Any]]:
    """Return the accuracies of CLS-ER for each candidate of λ and of the decay of both averages."""
    rows = []
    for stream, consistency, decay in itertools.product(AVERAGES_SEEDS, CONSISTENCIES, DECAYS):
        given = dict(
            preset_table("stream_defaults")[stream],
            lr=0.1,
            consistency=consistency,
            plastic_rate=1.0,
            stable_rate=0.9,
            plastic_decay=decay,
            stable_decay=decay,
            validation=True,
        )
        runs = [resolve(stream, "cls_er", {**given, "seed": seed})[0] for seed in range(AVERAGES_SEEDS[stream])]
        rows.append(
            {"stream": stream, "consistency": consistency, "decay": decay, "accuracies": accuracies(runs, work)}
        )
        print(rows[-1], flush=True)
    return rows


def constraint() -> list[dict[str, Any]]:
    """Return the accuracies of X-DER RPC with and without the constraint P on past classes."""
    rows = []
    for past in (True, False):
        found = [round(xder_accuracy(seed, past=past), 2) for seed in range(CONSTRAINT_SEEDS)]
        rows.append({"stream": "seq-digits", "past": past, "accuracies": found})
        print(rows[-1], flush=True)
    return rows


def xder_accuracy(seed: int, *, past: bool) -> float:
    """Return the accuracy of X-DER RPC on the validation split of Seq-digits."""
    defaults = preset_table("stream_defaults")["seq-digits"]
    settings = {setting: defaults[setting] for setting in ("epochs", "batch", "replay", "lr", "buffer")}
    stream = streams.seq_digits().validation()
    network = with_seed(lambda: networks.mlp(stream.classes, inputs=64), seed)
    with mock.patch.object(xder_rpc, "violation", xder_rpc.violation if past else future_violation):
        for event in train(stream, xder_rpc.XDERRPC(), network, **settings, seed=seed):
            if isinstance(event, Ended):
                return mean(event.result.accuracy_matrix[-1])
    raise AssertionError("a run ends")


def future_violation(others: Tensor, own: Tensor, margin: float, violation: Any = xder_rpc.violation) -> Tensor:
    """Return the violation of F, and 0 for P, whose other classes have no gradient."""
    value: Tensor = violation(others, own, margin)
    return value if others.requires_grad else torch.zeros_like(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("published", "averages", "constraint"))
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.stage == "constraint":
        rows = constraint()
    else:
        rows = (published if arguments.stage == "published" else averages)(arguments.work)
    publish({**provenance(), "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
