"""Measure one column of the paper's main table on a GPU: search on validation, then train several seeds on all images.

    python benchmarks/columns.py search --stream seq-cifar10 --buffer 500 --work FOLDER
    python benchmarks/columns.py confirm --stream seq-cifar10 --buffer 500 --rows k-fpf-kd --seeds 3 --work FOLDER
    python benchmarks/columns.py final --stream seq-cifar10 --buffer 500 --work FOLDER
    python benchmarks/columns.py keep --stream seq-cifar10 --buffer 500 --work FOLDER

``--network vgg11`` and ``--epochs 50`` measure a column of another network or of longer tasks, which has its own grids.

- ``search`` trains every point of the grids in grids.py with a tenth of the training images held out, all in one pack
  of lanes, and writes FOLDER/chosen-….json.
- ``confirm`` trains the two best points of a row with more seeds, where they are close, and chooses by the mean.
- ``final`` trains the chosen point of each row with the seeds 0, 1, ….
- ``keep`` adds the records of the final runs to results/ and copies the search to results/searches/.

Finished runs in FOLDER are skipped, and SIGTERM or Ctrl-C writes a checkpoint of each run under way, so every stage can
be interrupted and resumed: ``timeout 500 python benchmarks/columns.py …``, again and again. A row ``fpf+er`` also
measures ``er``: its record holds the accuracies before the finetuning.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from committed import add, search_file
from forgetless.experiments import record
from forgetless.experiments.checkpoint import Stop, Stopped
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.settings import Settings, resolve
from forgetless.paper.reproduce import parse_label
from grids import GRIDS, Point, grids_for, points
from provenance import provenance

SHOWN_SETTINGS = ("buffer", "lr", "ft_lr", "every", "kd", "ft_pad", "policy", "threshold")


def column_name(arguments: argparse.Namespace) -> str:
    """Return the stream, followed by the network and the epochs if they are not the stream's defaults."""
    epochs = f"{arguments.epochs}-epochs" if arguments.epochs else None
    return "-".join(filter(None, (arguments.stream, arguments.network, epochs)))


def settings_for(
    row: str, point: Point, seed: int, buffer: int, arguments: argparse.Namespace, *, validation: bool
) -> Settings:
    """Return the settings of one run of a row at a point of its grid."""
    method: str | None = None  # the recommended recipe
    given: dict[str, Any] = {}
    if row.startswith("k-fpf+"):
        method, given = row.removeprefix("k-fpf+"), {"repair": "k-fpf"}
    elif row != "recipe":
        method, given = parse_label("k-fpf-ce" if row.startswith("k-fpf-dense") else row, arguments.stream)
    common = {"buffer": buffer, "seed": seed, "device": arguments.device, "validation": validation}
    common |= {name: value for name in ("network", "epochs") if (value := getattr(arguments, name))}
    common |= {"anytime": True} if arguments.anytime and not validation else {}
    return resolve(arguments.stream, method, {**given, **point, **common})[0]


def run(planned: list[Settings], arguments: argparse.Namespace) -> None:
    """Train runs in lanes and print the outcome of each; a signal writes checkpoints and raises ``Stopped``."""
    began, stop = time.perf_counter(), Stop()
    stop.listen()
    outcomes = run_lanes(planned, arguments.lanes, arguments.work, stop=stop)
    for done, (settings, outcome) in enumerate(outcomes, start=1):
        if isinstance(outcome, record.Record):
            shown = f"{outcome.accuracy:.2f}"
        else:
            shown = f"{type(outcome.error).__name__}: {outcome.error}"
        values = {name: settings.to_dict().get(name) for name in SHOWN_SETTINGS} | dict(settings.options)
        point = " ".join(f"{name} {value}" for name, value in values.items() if value)
        seconds = time.perf_counter() - began
        print(
            f"{seconds:6.1f} s  {done}/{len(planned)}  {settings.label} seed {settings.seed} {point}: {shown}",
            flush=True,
        )


def chosen_file(buffer: int, arguments: argparse.Namespace) -> Path:
    """Return the file in the working folder that holds the search."""
    work: Path = arguments.work
    return work / f"chosen-{column_name(arguments)}-{buffer}.json"


def requested_rows(buffer: int, arguments: argparse.Namespace) -> list[str]:
    """Return the requested rows for which this buffer size has a grid."""
    grids = grids_for(column_name(arguments), buffer)
    requested = arguments.rows.split(",") if arguments.rows else list(grids)
    known = {row for size in arguments.buffer for row in grids_for(column_name(arguments), size)}
    if unknown := set(requested) - known:
        raise ValueError(f"rows is {arguments.rows}; there is no grid of {', '.join(sorted(unknown))}")
    return [row for row in grids if row in requested]


def search(arguments: argparse.Namespace) -> None:
    """Train every point of all rows and buffer sizes in one pack of lanes, and choose the best point of each row."""
    planned: dict[tuple[int, str], Settings] = {}
    known: dict[tuple[int, str], dict[str, Any]] = {}
    searched: dict[int, dict[str, Any]] = {}
    for buffer in arguments.buffer:
        file = chosen_file(buffer, arguments)
        searched[buffer] = json.loads(file.read_text())["rows"] if file.exists() else {}
        for row, outcome in searched[buffer].items():
            known |= {
                (buffer, json.dumps([row, entry["point"]])): entry
                for entry in outcome["grid"]
                if entry["validation_accuracy"] is not None
            }
        for row in requested_rows(buffer, arguments):
            grid = list(points(grids_for(column_name(arguments), buffer)[row]))
            for point in grid:
                key = (buffer, json.dumps([row, point]))
                if len(grid) > 1 and key not in known:
                    planned[key] = settings_for(row, point, 0, buffer, arguments, validation=True)
    run(list(planned.values()), arguments)
    for buffer in arguments.buffer:
        for row in requested_rows(buffer, arguments):
            entries: list[dict[str, Any]] = []
            for point in points(grids_for(column_name(arguments), buffer)[row]):
                key = (buffer, json.dumps([row, point]))
                finished_run = record.find(arguments.work, planned[key]) if key in planned else None
                accuracy = None if finished_run is None else finished_run.accuracy
                entries.append(known.get(key, {"point": point, "validation_accuracy": accuracy}))
            best = max(entries, key=lambda entry: entry["validation_accuracy"] or 0.0)
            searched[buffer][row] = {"chosen": best["point"], "grid": entries}
            print(buffer, row, best)
        values = {"rows": searched[buffer], **provenance(arguments.device)}
        record.write_json(values, chosen_file(buffer, arguments))


def confirm(arguments: argparse.Namespace) -> None:
    """Train the two best points of each row with all seeds on the validation split, and choose by the mean."""
    searched = {buffer: json.loads(chosen_file(buffer, arguments).read_text()) for buffer in arguments.buffer}
    candidates = [
        (buffer, row, entry)
        for buffer, values in searched.items()
        for row in requested_rows(buffer, arguments)
        for entry in sorted(values["rows"][row]["grid"], key=lambda entry: -(entry["validation_accuracy"] or 0.0))[:2]
    ]
    planned = [
        [settings_for(row, entry["point"], seed, buffer, arguments, validation=True) for seed in range(arguments.seeds)]
        for buffer, row, entry in candidates
    ]
    run([settings for seeds in planned for settings in seeds if settings.seed], arguments)  # the search had seed 0
    for (_, _, entry), seeds in zip(candidates, planned, strict=True):
        more = [record.read_run(arguments.work, settings).accuracy for settings in seeds if settings.seed]
        first = entry.get("validation_accuracies", [entry["validation_accuracy"]])[0]
        entry["validation_accuracies"] = [first, *more]
        entry["validation_accuracy"] = round(fmean(entry["validation_accuracies"]), 3)
    for buffer, row, entry in candidates:
        outcome = searched[buffer]["rows"][row]
        if entry["validation_accuracy"] == max(point["validation_accuracy"] or 0.0 for point in outcome["grid"]):
            outcome["chosen"] = entry["point"]
            print(buffer, row, entry)
    for buffer, values in searched.items():
        record.write_json(values, chosen_file(buffer, arguments))


def final_runs(buffer: int, arguments: argparse.Namespace) -> list[Settings]:
    """Return the settings of the chosen point of each row, for every seed."""
    chosen = json.loads(chosen_file(buffer, arguments).read_text())["rows"]
    return [
        settings_for(row, chosen[row]["chosen"], seed, buffer, arguments, validation=False)
        for row in requested_rows(buffer, arguments)
        if row in chosen
        for seed in range(arguments.seeds)
    ]


def finished(planned: Iterable[Settings], work: Path, *, whole: bool = False) -> Iterator[record.Record]:
    """Yield the records of the finished runs, without the changes of single tensors unless ``whole``."""
    for settings in planned:
        finished_run = record.find(work, settings)
        if finished_run is None:
            print(f"no record of {settings.label} seed {settings.seed}")
        else:
            yield finished_run if whole else dataclasses.replace(finished_run, tensor_changes={})


def keep(arguments: argparse.Namespace) -> None:
    """Add the records of the final runs and the search to results/."""
    for buffer in arguments.buffer:
        add(column_name(arguments), finished(final_runs(buffer, arguments), arguments.work))
        shutil.copy(chosen_file(buffer, arguments), search_file(column_name(arguments), buffer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["search", "confirm", "final", "keep"])
    streams = [name for name in GRIDS if not name.endswith(("-200", "-vgg11", "-epochs"))]
    parser.add_argument("--stream", default="seq-cifar10", choices=streams)
    parser.add_argument("--network", help="a network other than the stream's default")
    parser.add_argument("--epochs", type=int, help="epochs per task other than the stream's default")
    parser.add_argument("--buffer", type=int, nargs="+", default=[500])
    parser.add_argument("--rows", help="only these rows, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--anytime", action="store_true", help="final, keep: also finetune and test after each task")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the runs")
    arguments = parser.parse_args()
    if column_name(arguments) not in GRIDS:
        raise SystemExit(f"there are no grids for {column_name(arguments)}; there are {', '.join(GRIDS)}")
    if arguments.stage == "search":
        search(arguments)
    elif arguments.stage == "confirm":
        confirm(arguments)
    elif arguments.stage == "final":
        run([settings for buffer in arguments.buffer for settings in final_runs(buffer, arguments)], arguments)
    else:
        keep(arguments)


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        raise SystemExit("stopped; the same command resumes") from None
