"""``forgetless search``: a grid on validation data, then the best point on the test set."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli import options
from forgetless.cli.output import print_line, print_mixed_versions, print_note, print_skipped, print_table
from forgetless.cli.progress import SweepProgress
from forgetless.config import catalogue
from forgetless.experiments.labels import describe, flat
from forgetless.experiments.search import SearchResult, paper_grid, points_per_seed, read_grid
from forgetless.experiments.search import search as execute_search
from forgetless.experiments.settings import Settings

SETTINGS = options.settings_except(("seed", "validation"))
SHOWN = 10  # points in the table


@options.with_options({**options.EXECUTION, **SETTINGS})
def search(
    context: typer.Context,
    stream: options.Stream,
    method: options.Method,
    grid: Annotated[Path | None, typer.Option(help="TOML file, a list per setting; default: the paper's grid.")] = None,
    fpf: options.Fpf = False,
    k_fpf: options.KFpf = False,
    distill: Annotated[
        bool, options.flag("--distill", "Repair", "Also search λ of k-FPF-KD in the paper's grid.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Seeds of the chosen point, trained on all training images.")] = 5,
    search_seeds: Annotated[int, typer.Option(help="Validation seeds of each point.")] = 1,
    halving: Annotated[bool, typer.Option("--halving", help="Only the better half receives further seeds.")] = False,
    out: options.Out = Path("runs"),
    quiet: options.Quiet = False,
    **given: Any,
) -> None:
    """Try a grid on validation data, then train the best point on all data. Settings are options, as for run."""
    catalogue.check_name("stream", stream)
    catalogue.check_name("method", method)
    chosen = options.parse_settings(given, SETTINGS, context.args, method, fpf, k_fpf)
    if distill and (grid or not k_fpf):
        raise ValueError("--distill adds λ to the paper's grid of --k-fpf; in a grid of your own, list kd instead")
    if halving and search_seeds == 1:
        raise ValueError("--halving gives further seeds to the better half: it needs --search-seeds 2 or more")
    space = read_grid(grid) if grid else paper_grid(stream, chosen.get("repair", "none"), distill=distill)
    points = math.prod(map(len, space.values()))
    total = sum(points_per_seed(points, search_seeds, halving=halving)) + seeds
    names = {*space, "seed", "validation"}

    def label(run: Settings) -> str:
        return describe(run.label, flat(run.to_dict()), names)

    with SweepProgress(total, out, label) as progress:
        for event in execute_search(
            stream, method, chosen, space, out, seeds=seeds, search_seeds=search_seeds, halving=halving,
            execution=options.parse_execution(given),
        ):  # fmt: skip
            if not isinstance(event, SearchResult):
                progress.show(event)
    assert isinstance(event, SearchResult)
    _print_result(event)
    print_note(f"result: {event.path(out)}")


def _print_result(result: SearchResult) -> None:
    """Print the best points, and the accuracy of the chosen one."""
    print_skipped(result.skipped)
    ranked = sorted(result.points, key=lambda point: (-len(point.accuracies), -point.score))
    lines = []
    for point in ranked[:SHOWN]:
        score = f"{point.score:.2f}" if point.accuracies else "failed"
        lines.append([*map(str, point.values.values()), score, str(len(point.accuracies))])
    print_table([*result.grid, "validation", "seeds"], lines)
    if len(ranked) > SHOWN:
        print_line(f"… and {len(ranked) - SHOWN} more points")
    settings = ", ".join(f"{name} {value}" for name, value in result.chosen.items())
    accuracy, count = result.test_accuracy, len(result.records)
    spread = f" ± {accuracy.std:.2f} % over {count} seeds" if count > 1 else " % with one seed"
    print_line(f"chosen: {settings}; on the test set {accuracy.mean:.2f}{spread}")
    print_mixed_versions(result.records)
    if result.halving:
        print_line(f"halving saved {result.saved_runs} runs")
