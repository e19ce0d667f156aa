"""Leave one stream out: the recommended recipe against replay, with learning rates chosen on the other streams.

    python benchmarks/one_out.py validate --streams STREAM,… --device cuda --seeds 1 --work FOLDER
    python benchmarks/one_out.py final --streams STREAM,… --device cuda --seeds 3 --work FOLDER

- ``validate`` trains each row at every learning rate, with a tenth of the training images held out. ``--rows`` may also
  name two variants of the recipe: ``recipe-masked``, with the loss over the task's own classes for perceptrons too, and
  ``recipe-uncropped``, which repairs on whole images.
- ``final`` trains each row on all images, at the rate with the smallest mean shortfall on the *other* streams whose
  networks have batch norm, or on those whose networks have none.

Both add what they measure to benchmarks/records/one-out.json. No other setting is chosen: the stream states network,
epochs, batch size and buffer; all rows repair within the default budget. A row ``fpf+er`` also measures ``er``: its
record holds the accuracies before the repair. Finished runs in FOLDER are skipped. On a GPU, SIGTERM or Ctrl-C writes a
checkpoint of each run under way, which the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from forgetless.experiments import presets, record
from forgetless.experiments.checkpoint import Stop, Stopped
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunFailed
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.sweep import sweep
from forgetless.repair.settings import BUDGET
from provenance import provenance

RECORD = Path(__file__).parent / "records" / "one-out.json"
STREAMS = (
    "seq-digits", "seq-mnist", "rot-mnist", "seq-organamnist", "seq-pathmnist", "seq-cifar10", "seq-tinyimagenet",
    "seq-pacs",
)  # fmt: skip
RATES = ("0.03", "0.1")
ROWS = ("recipe", "fpf+er", "fpf+derpp", "gdumb")
FEWER_EPOCHS = {"seq-pathmnist": 2, "seq-tinyimagenet": 1}  # in validation, where five would take most of the time
VARIANTS: Mapping[str, Mapping[str, Any]] = {"recipe-masked": {"method": "masked"}, "recipe-uncropped": {"ft_pad": 0}}
Validation = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]  # accuracy by row, stream, rate and seed


def settings_of(stream: str, row: str, rate: str | None, seed: int, device: str, *, validation: bool) -> Settings:
    """Return the settings of one run."""
    given: dict[str, Any] = {**presets.preset_table("stream_defaults")[stream]}
    given |= {"seed": seed, "device": device, "validation": validation}
    if rate is not None:
        given["lr"] = float(rate)
    if validation:
        given["epochs"] = FEWER_EPOCHS.get(stream, given["epochs"])
    if row == "recipe" or row in VARIANTS:
        recipe = {name: value for name, (value, _) in presets.recipe(stream).items()}
        values = {**recipe, **given, "budget": BUDGET, **VARIANTS.get(row, {})}
        return resolve(stream, values.pop("method"), values)[0]
    repair, _, method = row.rpartition("+")
    if repair:
        given |= {"repair": repair, "budget": BUDGET}
    if method == "derpp":
        given |= {"alpha": 0.2, "beta": 0.5}  # the DER authors' values on two of their three streams
    return resolve(stream, method, given)[0]


def is_perceptron(stream: str) -> bool:
    """Return whether the stream's network has no batch norm."""
    return bool(presets.preset_table("stream_defaults")[stream]["network"] == "mlp")


def choose(validation: Validation, row: str, stream: str) -> str | None:
    """Return the rate of a row on a stream: the best on the other streams of the same kind; none for GDumb."""
    others = [
        {rate: fmean(seeds.values()) for rate, seeds in rates.items()}
        for other, rates in validation.get(row, {}).items()
        if other != stream and is_perceptron(other) == is_perceptron(stream)
    ]
    if not others:
        return None
    return min(RATES, key=lambda rate: fmean(max(rates.values()) - rates[rate] for rates in others))


def outcomes(runs: list[Settings], arguments: argparse.Namespace) -> Iterator[tuple[Settings, Record]]:
    """Train runs, in lanes on a GPU or in processes on a CPU, and yield the record of each."""
    if arguments.device == "cpu":
        execution = Execution(workers=arguments.workers, retry=True)
        for event in sweep([Planned(run, {}) for run in runs], arguments.work, execution):
            if isinstance(event, RunFailed):
                raise ValueError(f"{event.settings.label}: {event.error}")
            if isinstance(event, RunDone):
                yield event.settings, record.read_run(arguments.work, event.settings)
        return
    stop = Stop()
    stop.listen()
    for settings, result in run_lanes(runs, arguments.lanes, arguments.work, stop=stop):
        if not isinstance(result, Record):
            raise result.error
        yield settings, result


def shown(row: str, rate: str | None, result: Record) -> dict[str, Any]:
    """Return what the record keeps of a run."""
    repaired = row != "gdumb"
    return {
        "stream": result.settings["stream"],
        "row": row,
        "lr": rate,
        "seed": result.settings["seed"],
        "accuracy": result.accuracy,
        "before_repair": round(fmean(result.before_finetuning or [0.0]), 3) if repaired else None,
        "flops": result.flops,
        "device": result.device,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["validate", "final"])
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    content: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    measured = content.setdefault("validation", {})
    runs = content.setdefault("runs", [])
    final = arguments.stage == "final"
    planned: dict[str, tuple[str, str | None, Settings]] = {}
    for stream in arguments.streams.split(","):
        for row in arguments.rows.split(","):
            rates = [choose(measured, row, stream)] if final else RATES if row != "gdumb" else ()
            for rate in rates:
                for seed in range(arguments.seeds):
                    settings = settings_of(stream, row, rate, seed, arguments.device, validation=not final)
                    planned[settings.id] = (row, rate, settings)
    began = time.perf_counter()
    for settings, result in outcomes([settings for _, _, settings in planned.values()], arguments):
        row, rate, _ = planned[settings.id]
        print(
            f"{time.perf_counter() - began:6.1f} s  {settings.stream} {row} lr {rate}: {result.accuracy:.2f}",
            flush=True,
        )
        if final:
            entry = shown(row, rate, result)
            key = ("stream", "row", "seed")
            runs[:] = [run for run in runs if any(run[name] != entry[name] for name in key)] + [entry]
        else:
            by_rate = measured.setdefault(row, {}).setdefault(settings.stream, {})
            by_rate.setdefault(str(rate), {})[str(settings.seed)] = result.accuracy
        record.write_json({**content, **provenance(arguments.device)}, arguments.out)


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        raise SystemExit("stopped; the same command resumes") from None
