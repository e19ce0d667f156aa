"""Search settings as the paper does: try a grid on validation data, then train the best point on all data.

A tenth of each task's training images is held out, and points are compared only by their accuracy on it. The best
point is then trained on all training images with several seeds and tested. All runs belong to sweeps, so finished runs
are skipped. Imports no torch.
"""

import hashlib
import itertools
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from forgetless.config.fields import check_value
from forgetless.experiments import record
from forgetless.experiments.checks import check_runs
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunFailed, SweepEvent
from forgetless.experiments.presets import preset_table
from forgetless.experiments.settings import resolve
from forgetless.experiments.storage import read_toml
from forgetless.experiments.sweep import RETRY_HINT, sweep
from forgetless.training.metrics import MeanStd, mean_std

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Point:
    """A point of the grid, and its validation accuracies in percent, one per seed; a failed run has none."""

    values: dict[str, Any]
    accuracies: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Return the mean validation accuracy; 0 for a point that failed."""
        return mean(self.accuracies) if self.accuracies else 0.0


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. Accuracies are in percent."""

    stream: str
    method: str
    given: dict[str, Any]  # settings that all points share
    grid: dict[str, list[Any]]
    search_seeds: int
    seeds: int
    halving: bool
    points: list[Point]
    chosen: dict[str, Any]
    records: list[record.Record]  # of the chosen point on the test set, one per seed
    skipped: list[str]  # why other records of the chosen point were left out

    @property
    def test_accuracy(self) -> MeanStd:
        """Return the mean and deviation of the chosen point's test accuracy over seeds."""
        return mean_std(test.accuracy for test in self.records)

    @property
    def saved_runs(self) -> int:
        """Return how many validation runs halving saved."""
        points = len(self.points)
        return points * self.search_seeds - sum(points_per_seed(points, self.search_seeds, halving=self.halving))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "stream": self.stream, "method": self.method, "given": self.given, "grid": self.grid,
            "points": [{"point": point.values, "validation": point.accuracies} for point in self.points],
            "chosen": self.chosen, "accuracies": [test.accuracy for test in self.records],
            "mean": round(self.test_accuracy.mean, 3), "spread": round(self.test_accuracy.std, 3),
            "ids": [test.id for test in self.records], "saved": self.saved_runs,
        }  # fmt: skip

    def path(self, out: Path) -> Path:
        """Return the file of the result; searches that differ in settings, grid or seeds have different files."""
        effort = [self.search_seeds, self.seeds, int(self.halving)]
        text = json.dumps([self.stream, self.method, self.given, self.grid, effort], sort_keys=True, default=list)
        return out / f"search-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def paper_grid(stream: str, repair: str, *, distill: bool) -> Grid:
    """Return the paper's grid for FPF or k-FPF on a stream, with the weight ``kd`` only if the repair distils."""
    grids = preset_table("grids")
    if repair not in grids.get(stream, {}):
        known = ", ".join(f"{kind} on {name}" for name, kinds in grids.items() for kind in kinds)
        raise ValueError(f"the paper has no grid for this ({known}): write one in a TOML file, --grid FILE")
    return {name: tuple(values) for name, values in grids[stream][repair].items() if name != "kd" or distill}


def read_grid(file: Path) -> Grid:
    """Return the grid of a TOML file, or raise ``ValueError`` that names the file."""
    grid = read_toml(file)
    if not grid:
        raise ValueError(f"{file}: the grid is empty; it must have at least one setting with a list of values")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{file}: the grid has {name} = {values!r}; it must be a list of at least one value")
        if name in ("seed", "validation"):
            raise ValueError(f"{file}: the grid has {name}, which the search sets itself")
    return {name: tuple(values) for name, values in grid.items()}


def points_per_seed(points: int, seeds: int, *, halving: bool) -> list[int]:
    """Return how many points are tried with each seed: all of them, or with halving the better half."""
    return [max(1, points // 2**seed) if halving else points for seed in range(seeds)]


def search(
    stream: str,
    method: str,
    given: Mapping[str, Any],
    grid: Grid,
    out: Path,
    *,
    seeds: int = 5,
    search_seeds: int = 1,
    halving: bool = False,
    execution: Execution | None = None,
) -> Iterator[SweepEvent | SearchResult]:
    """Search a grid, train the best point, and yield the events of all runs and at last the ``SearchResult``.

    Each point has the settings ``given`` and is validated with ``search_seeds`` seeds. With ``halving``, only the
    better half of the points receives a further one. The chosen point is trained on all training images with ``seeds``
    seeds. The result is written to ``search-….json`` in ``out``.
    """
    check_value("seeds", seeds, int, least=1)
    check_value("search_seeds", search_seeds, int, least=1)
    for name, value in given.items():
        if name in ("seed", "validation"):
            raise ValueError(f"{name} is {value}, but a search sets it itself: remove it")
        if name in grid:
            raise ValueError(f"{name} is {value}, but the grid has it too: remove one of them")
    execution = execution or Execution()
    points = [Point(dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]

    def planned(point: Point, seed: int, *, validation: bool) -> Planned:
        return Planned(*resolve(stream, method, {**given, **point.values, "seed": seed, "validation": validation}))

    alive = points
    for seed, count in enumerate(points_per_seed(len(points), search_seeds, halving=halving)):
        alive = sorted(alive, key=lambda point: -point.score)[:count]
        runs = [planned(point, seed, validation=True) for point in alive]
        if seed == 0 and execution.on == "here":  # the nodes of a cluster may have other modules
            check_runs(runs, out)
        errors = yield from _repeat_lost(runs, out, execution)
        for point, run in zip(alive, runs, strict=True):
            if (validated := record.find(out, run.settings)) is not None:
                point.accuracies.append(validated.accuracy)
        alive = [point for point in alive if len(point.accuracies) == seed + 1]
        if not alive:
            raise ValueError(f"every point of the grid failed, the first with: {errors[0]}; {RETRY_HINT}")
    best = max(alive, key=lambda point: point.score)
    runs = [planned(best, seed, validation=False) for seed in range(seeds)]
    errors = yield from _repeat_lost(runs, out, execution)
    tests = [test for run in runs if (test := record.find(out, run.settings)) is not None]
    if not tests:
        raise ValueError(f"the chosen point failed on all training images: {errors[0]}; {RETRY_HINT}")
    agreeing, skipped = record.agreeing(tests)
    result = SearchResult(
        stream, method, dict(given), {name: list(values) for name, values in grid.items()},
        search_seeds, seeds, halving, points, best.values, agreeing, skipped,
    )  # fmt: skip
    record.write_json(result.to_dict(), result.path(out))
    yield result


def _repeat_lost(runs: list[Planned], out: Path, execution: Execution) -> Generator[SweepEvent, None, list[str]]:
    """Execute runs, repeat lost runs once, and return the errors of the others.

    A lost run says nothing about its point. If a run is lost twice, the search therefore ends without a choice.
    """
    errors: list[str] = []
    for attempt in (1, 2):
        lost: set[str] = set()
        for event in sweep(runs, out, execution):
            if isinstance(event, RunFailed) and event.lost:
                if attempt == 2:
                    hint = "No point was chosen; the same call resumes the search"
                    raise ValueError(f"a run was lost twice: {event.error}. {hint}")
                lost.add(event.settings.id)
                continue
            if isinstance(event, RunFailed):
                errors.append(event.error)
            yield event
        runs = [run for run in runs if run.settings.id in lost]
    return errors
