"""Measure the paper's other tables and figures on a GPU: the runs that ``forgetless reproduce`` plans for an item.

    python benchmarks/studies.py run freeze --stream seq-cifar10 --seeds 3 --work FOLDER
    python benchmarks/studies.py keep freeze --stream seq-cifar10 --seeds 3 --work FOLDER

``run`` trains the runs of the item in lanes and skips finished runs in FOLDER. ``keep`` adds their records to
results/studies.jsonl, without the changes of single tensors; ``bn-dynamics`` and ``filter-dynamics`` keep them,
because they are about single tensors. ``--points`` selects lines of a figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from columns import finished, run
from committed import add
from forgetless.experiments.settings import Settings
from forgetless.paper.filters import measure_filters
from forgetless.paper.reproduce import Options, runs
from forgetless.paper.studies import ITEMS

WHOLE = ("bn-dynamics", "filter-dynamics")


def planned(arguments: argparse.Namespace) -> list[Settings]:
    """Return the runs seed by seed, so that an interrupted job has every line with fewer seeds."""
    options = Options(
        stream=arguments.stream,
        buffer=arguments.buffer,
        rows=tuple(arguments.rows.split(",")) if arguments.rows else (),
        seeds=arguments.seeds,
        device=arguments.device,
    )
    lines = ITEMS[arguments.item].lines(options)
    if arguments.points:
        wanted = arguments.points.split(";")
        lines = [line for line in lines if any(part in line.name for part in wanted)]
    return sorted((planned_run.settings for planned_run in runs(lines)), key=lambda settings: settings.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["run", "keep"])
    parser.add_argument("item", choices=list(ITEMS))
    parser.add_argument("--stream")
    parser.add_argument("--buffer", type=int)
    parser.add_argument("--rows", help="only these rows, separated by commas")
    parser.add_argument("--points", help="only lines whose names contain one of these, separated by semicolons")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.stage == "run" and ITEMS[arguments.item].filters:
        for planned_run in runs(ITEMS[arguments.item].lines(Options(stream=arguments.stream, device=arguments.device))):
            measure_filters(planned_run, arguments.work)
    elif arguments.stage == "run":
        run(planned(arguments), arguments)
    else:
        add("studies", finished(planned(arguments), arguments.work, whole=arguments.item in WHOLE))


if __name__ == "__main__":
    main()
