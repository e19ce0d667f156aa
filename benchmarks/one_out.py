"""Leave one stream out: the recommended recipe against replay methods, with settings chosen on the other streams.

    python benchmarks/one_out.py validate --streams STREAM,… --device cuda --work FOLDER
    python benchmarks/one_out.py choose --work FOLDER
    python benchmarks/one_out.py final --streams STREAM,… --device cuda --seeds 3 --work FOLDER
    python benchmarks/one_out.py keep --work FOLDER

- ``validate`` trains each row at every point of its grid, with a tenth of the training images held out.
- ``choose`` finds the point of each row for each stream by the validation accuracies on the other streams, and adds
  both to benchmarks/records/one-out.json.
- ``final`` trains the chosen points on all images with the seeds 0, 1, ….
- ``keep`` adds the final runs to the record.

Nothing is chosen per stream but what describes it: network, epochs, batch size, buffer. Finished runs in FOLDER are
skipped. A row ``fpf+er`` also measures ``er``: its record holds the accuracies before the repair.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunFailed
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.presets import preset_table
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.sweep import sweep
from provenance import provenance

RECORD = Path(__file__).parent / "records" / "one-out.json"
STREAMS = (
    "seq-digits", "seq-mnist", "rot-mnist", "seq-organamnist", "seq-pathmnist", "seq-cifar10", "seq-tinyimagenet",
    "seq-pacs",
)  # fmt: skip
Point = dict[str, Any]
RATES: list[Point] = [{"lr": rate} for rate in (0.03, 0.1)]
GRIDS: dict[str, list[Point]] = {
    "recipe": RATES,
    "fpf+er": RATES,
    "fpf+derpp": RATES,
    "gdumb": [{}],
}
SHORTER = {"seq-pathmnist": 2, "seq-tinyimagenet": 1}  # epochs in validation: five would take most of the time


def settings_of(stream: str, row: str, point: Point, seed: int, device: str, *, validation: bool) -> Settings:
    """Return the settings of one run."""
    described = preset_table("stream_defaults")[stream]
    given: dict[str, Any] = {**described, **point, "seed": seed, "device": device, "validation": validation}
    if validation and stream in SHORTER:
        given["epochs"] = SHORTER[stream]
    if row == "recipe":
        return resolve(stream, None, given)[0]
    repair, _, method = row.rpartition("+")
    if repair:
        given |= {"repair": repair, "budget": preset_budget()}
    if method == "derpp":
        given |= {"alpha": 0.2, "beta": 0.5}  # as the DER authors on two of three streams
    return resolve(stream, method, given)[0]


def preset_budget() -> float:
    """Return the default budget of repairs."""
    from forgetless.repair.settings import BUDGET

    return BUDGET


def train(runs: list[Settings], arguments: argparse.Namespace) -> None:
    """Train all runs, in lanes on a GPU or in processes on a CPU, and print the outcome of each."""
    began = time.perf_counter()
    for done, (settings, outcome) in enumerate(outcomes(runs, arguments), start=1):
        seconds = time.perf_counter() - began
        print(f"{seconds:6.1f} s  {done}/{len(runs)}  {settings.stream} {settings.label} lr {settings.to_dict()['lr']} "
              f"seed {settings.seed}: {outcome}", flush=True)  # fmt: skip


def outcomes(runs: list[Settings], arguments: argparse.Namespace) -> Iterable[tuple[Settings, str]]:
    if arguments.device == "cpu":
        execution = Execution(workers=arguments.workers, retry=True)
        for event in sweep([Planned(run, {}) for run in runs], arguments.work, execution):
            if isinstance(event, RunDone):
                yield event.settings, f"{record.read_run(arguments.work, event.settings).accuracy:.2f}"
            elif isinstance(event, RunFailed):
                yield event.settings, event.error
        return
    for settings, result in run_lanes(runs, arguments.lanes, arguments.work):
        found = isinstance(result, record.Record)
        yield settings, f"{result.accuracy:.2f}" if found else f"{type(result.error).__name__}: {result.error}"


def validation_runs(streams: Iterable[str], device: str) -> dict[tuple[str, str, str], Settings]:
    """Return the runs of the validation by stream, row and point."""
    return {
        (stream, row, json.dumps(point)): settings_of(stream, row, point, 0, device, validation=True)
        for row, grid in GRIDS.items()
        for point in grid
        if len(grid) > 1
        for stream in streams
    }


def device_of(stream: str) -> str:
    """Return where a stream is trained: perceptrons on a CPU."""
    return "cpu" if preset_table("stream_defaults")[stream]["network"] == "mlp" else "cuda"


def choose(arguments: argparse.Namespace) -> None:
    """Choose each row's point for each stream by its mean shortfall on the others, and write the record."""
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for (stream, row, point), settings in validation_runs(STREAMS, "cuda").items():
        settings = settings_of(stream, row, json.loads(point), 0, device_of(stream), validation=True)
        finished = record.find(arguments.work, settings)
        if finished is not None:
            accuracies.setdefault(row, {}).setdefault(stream, {})[point] = finished.accuracy
    chosen: dict[str, dict[str, Point]] = {}
    for row, grid in GRIDS.items():
        for left_out in STREAMS:
            others = [found for stream, found in accuracies.get(row, {}).items() if stream != left_out]
            points = [json.dumps(point) for point in grid]
            shortfall = {
                point: fmean(max(found.values()) - found.get(point, 0.0) for found in others) if others else 0.0
                for point in points
            }
            chosen.setdefault(row, {})[left_out] = json.loads(min(points, key=shortfall.__getitem__))
    content = {"validation": accuracies, "chosen": chosen, **provenance()}
    record.write_json(content, arguments.work / "chosen.json")
    print(json.dumps(content, indent=1))


def final_runs(streams: Iterable[str], arguments: argparse.Namespace) -> list[Settings]:
    chosen = json.loads((arguments.work / "chosen.json").read_text())["chosen"]
    return [
        settings_of(stream, row, chosen[row][stream], seed, device_of(stream), validation=False)
        for seed in range(arguments.seeds)
        for stream in streams
        for row in (arguments.rows.split(",") if arguments.rows else GRIDS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["validate", "choose", "final", "keep"])
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--rows")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    streams = [stream for stream in arguments.streams.split(",") if device_of(stream) == arguments.device]
    if arguments.stage == "validate":
        runs = validation_runs(streams, arguments.device)
        rows = arguments.rows.split(",") if arguments.rows else GRIDS
        train([settings for (_, row, _), settings in runs.items() if row in rows], arguments)
    elif arguments.stage == "choose":
        choose(arguments)
    elif arguments.stage == "final":
        train(final_runs(streams, arguments), arguments)


if __name__ == "__main__":
    main()
