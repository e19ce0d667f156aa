"""The paper's further tables and figures on a GPU: the runs of an item of ``forgetless reproduce``, and their records.

    python benchmarks/studies.py run freeze --stream seq-cifar10 --seeds 3 --work FOLDER
    python benchmarks/studies.py keep freeze --stream seq-cifar10 --seeds 3 --work FOLDER

``run`` trains what ``forgetless reproduce freeze`` plans, in lanes; ``keep`` copies the records, less what takes room,
into results/studies.jsonl. What has a record in FOLDER is not done again. ``--points`` leaves out lines of a figure.
``bn-dynamics`` and ``filter-dynamics`` are kept whole, since they are about single tensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from columns import finished, run
from committed import add
from forgetless.experiments.settings import Settings
from forgetless.paper.filters import measure
from forgetless.paper.reproduce import Options, runs
from forgetless.paper.studies import ITEMS

WHOLE = ("bn-dynamics", "filter-dynamics")


def planned(arguments: argparse.Namespace) -> list[Settings]:
    """Seed by seed, so that what is stopped has all lines with fewer seeds."""
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
    return sorted((one.settings for one in runs(lines)), key=lambda settings: settings.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "keep"])
    parser.add_argument("item", choices=list(ITEMS))
    parser.add_argument("--stream")
    parser.add_argument("--buffer", type=int)
    parser.add_argument("--rows", help="only these, with commas between")
    parser.add_argument("--points", help="only lines with one of these in their names, with semicolons between")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "run" and ITEMS[arguments.item].filters:
        for one in runs(ITEMS[arguments.item].lines(Options(stream=arguments.stream, device=arguments.device))):
            measure(one, arguments.work)
    elif arguments.what == "run":
        run(planned(arguments), arguments)
    else:
        add("studies", finished(planned(arguments), arguments.work, whole=arguments.item in WHOLE))


if __name__ == "__main__":
    main()
