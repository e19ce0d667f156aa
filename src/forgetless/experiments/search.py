"""The paper's way to choose settings: every point of a grid on validation, the best of them on all data, over seeds.

A tenth of each task's training images is held out; points are compared by their accuracy on it, and nothing else. The
best is then trained on all training images with several seeds, and tested. All runs are those of a sweep: what has a
record is not done again. Imports no torch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from forgetless.config.fields import check_value
from forgetless.experiments import record
from forgetless.experiments.jobs import Planned
from forgetless.experiments.presets import GRIDS
from forgetless.experiments.record import agreeing
from forgetless.experiments.settings import resolve
from forgetless.experiments.storage import USUAL, Schedule
from forgetless.experiments.sweep import AGAIN, Done, Failed, Started, check_plan, read_toml, sweep

Point = dict[str, Any]
Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Found:
    """The outcome of a search. Accuracies are in percent; of a point that failed there is none."""

    stream: str
    method: str
    given: dict[str, Any]
    grid: dict[str, list[Any]]
    points: list[tuple[Point, list[float]]]  # with their accuracies on validation, one a seed
    chosen: Point
    records: list[record.Record]  # of the chosen point on the test set, one a seed
    skipped: list[str]  # those of other tasks or groups than most of them, and why
    saved: int  # runs that halving left out
    effort: list[int]  # seeds of each point, seeds of the chosen one, whether by halving

    @property
    def accuracies(self) -> list[float]:
        return [one.accuracy for one in self.records]

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.records]

    @property
    def mean(self) -> float:
        return mean(self.accuracies)

    @property
    def spread(self) -> float:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "stream": self.stream, "method": self.method, "given": self.given, "grid": self.grid,
            "points": [{"point": point, "validation": accuracies} for point, accuracies in self.points],
            "chosen": self.chosen, "accuracies": self.accuracies, "mean": round(self.mean, 3),
            "spread": round(self.spread, 3), "ids": self.ids, "saved": self.saved,
        }  # fmt: skip


def paper_grid(stream: str, repair: str, *, distill: bool) -> Grid:
    """The paper's search space for FPF or k-FPF on a stream; an error where it has none."""
    grids = GRIDS.get(stream, {})
    if repair not in grids:
        known = ", ".join(f"{kind} on {name}" for name, kinds in GRIDS.items() for kind in kinds)
        raise ValueError(f"the paper has no grid for this ({known}): give one in a TOML file, --grid FILE")
    return {name: values for name, values in grids[repair].items() if name != "kd" or distill}


def read_grid(file: Path) -> Grid:
    values = read_toml(file)
    try:
        return check_grid(values)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def check_grid(grid: Mapping[str, Any]) -> Grid:
    """A user's grid: lists of values by setting."""
    if not grid:
        raise ValueError("the grid is empty; it must have one setting or more, each with a list of values")
    for name, values in grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"the grid has {name} = {values!r}; it must be a list of one value or more")
        if name in ("seed", "validation"):
            raise ValueError(f"the grid has {name}, which the search sets itself")
    return {name: tuple(values) for name, values in grid.items()}


def rungs(points: int, seeds: int, *, halving: bool) -> list[int]:
    """How many points are tried with each seed: all of them, or with halving the best half of those before."""
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
    on: str = "here",
    workers: int | None = None,
    lanes: int | None = None,
    retry: bool = False,
    schedule: Schedule = USUAL,
) -> Iterator[Started | Done | Failed | Found]:
    """Search and retrain; gives what becomes of each run, and at the end what was found, also in ``out/search-….json``.

    given         settings all points share
    seeds         of the runs on all training images
    search_seeds  of each point on validation; with ``halving`` a further seed is given to the better half only
    The others as for ``sweep``.
    """
    for name, value in (("seeds", seeds), ("search_seeds", search_seeds)):
        check_value(name, value, int, least=1)
    points: list[Point] = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    scores: dict[int, list[float]] = {number: [] for number in range(len(points))}
    for name in given:
        if name in ("seed", "validation"):
            raise ValueError(f"{name} is {given[name]}, but a search sets it: leave it out")
        if name in grid:
            raise ValueError(f"{name} is {given[name]}, and the grid has it too: leave it out of one of them")

    def planned(point: Point, seed: int, *, validation: bool) -> Planned:
        return Planned(*resolve(stream, method, {**given, **point, "seed": seed, "validation": validation}))

    how: dict[str, Any] = {"on": on, "workers": workers, "lanes": lanes, "retry": retry, "schedule": schedule}
    alive = list(scores)
    for seed, keep in enumerate(rungs(len(points), search_seeds, halving=halving)):
        alive = sorted(alive, key=lambda number: -score(scores[number]))[:keep]
        runs = {number: planned(points[number], seed, validation=True) for number in alive}
        if seed == 0 and on == "here":  # elsewhere there may be other modules
            check_plan(list(runs.values()), out)
        errors = yield from _done(list(runs.values()), out, how)
        for number, one in runs.items():
            if (made_ := record.find(out, one.settings)) is not None:
                scores[number].append(made_.accuracy)
        alive = [number for number in alive if len(scores[number]) == seed + 1]  # a point that failed is out
        if not alive:
            raise ValueError(f"every point of the grid failed, the first with: {errors[0]}; {AGAIN}")
    best = max(alive, key=lambda number: score(scores[number]))
    finals = [planned(points[best], seed, validation=False) for seed in range(seeds)]
    errors = yield from _done(finals, out, how)
    made = [made_ for one in finals if (made_ := record.find(out, one.settings)) is not None]
    if not made:
        raise ValueError(f"the chosen point failed on all training images, the first seed with: {errors[0]}; {AGAIN}")
    found = Found(
        stream, method, dict(given), {name: list(values) for name, values in grid.items()},
        [(points[number], scores[number]) for number in scores], points[best], *agreeing(made),
        len(points) * search_seeds - sum(rungs(len(points), search_seeds, halving=halving)),
        [search_seeds, seeds, int(halving)],
    )  # fmt: skip
    record.write_json(found.to_dict(), path(out, found))
    yield found


def _done(runs: list[Planned], out: Path, how: dict[str, Any]) -> Generator[Started | Done | Failed, None, list[str]]:
    """Do runs, those that were lost once more; gives the errors. One that is lost again says nothing of its point.

    So nothing is chosen then: an error ends the search, and the same call goes on with it.
    """
    errors: list[str] = []
    for again in (False, True):
        lost: list[Planned] = []
        for note in sweep(runs, out, **how):
            if isinstance(note, Failed) and note.lost:
                if again:
                    raise ValueError(f"a run was lost twice: {note.error}. Nothing was chosen; the same call goes on")
                lost += [one for one in runs if one.settings.id == note.settings.id]
                continue
            errors += [note.error] if isinstance(note, Failed) else []
            yield note
        runs = lost
    return errors


def path(out: Path, found: Found) -> Path:
    """Where a search leaves what it found: by stream, method, what was given, the grid and the seeds."""
    text = json.dumps([found.stream, found.method, found.given, found.grid, found.effort], sort_keys=True, default=list)
    return out / f"search-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def score(accuracies: list[float]) -> float:
    """What points are compared by: the mean over seeds, 0 for one that failed."""
    return mean(accuracies) if accuracies else 0.0
