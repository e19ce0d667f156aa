"""Check that all of many runs can start, before the first one does. Imports torch only if a run's method must be built.

A run may lack data, an optional package, a GPU, or code of the user's.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from forgetless.config import catalogue
from forgetless.data.requirements import missing
from forgetless.experiments import record
from forgetless.experiments.jobs import Planned
from forgetless.experiments.settings import Settings


def check_runs(runs: Sequence[Planned], out: Path | None) -> None:
    """Raise one ``ValueError`` that says how many runs cannot start on this machine, and why.

    Runs that have a record in ``out`` are not checked.
    """
    problems: dict[str, str] = {}  # by what a run needs
    counts: Counter[str] = Counter()
    for settings in (run.settings for run in runs):
        if out is not None and record.path(out, settings).exists():
            continue
        needs = [settings.stream, settings.method, settings.network, settings.device, settings.options]
        key = json.dumps(needs, sort_keys=True, default=str)
        if key not in problems:
            problems[key] = _problem(settings)
        counts[problems[key]] += 1
    del counts[""]
    if counts:
        raise ValueError(
            "; ".join(f"{count} of {len(runs)} runs cannot start: {problem}" for problem, count in counts.items())
        )


def _problem(settings: Settings) -> str:
    """Return what a run lacks; empty if nothing."""
    if problem := missing(settings.stream):
        return problem
    try:
        if settings.device.startswith("cuda"):
            from forgetless.compute.engine import find_device

            find_device(settings.device)
        if settings.user_parts or settings.options:
            from forgetless.experiments.build import build_method

            build_method(settings)
        for kind, name in settings.user_parts.items():
            catalogue.load(kind, name)
    except (ValueError, ImportError) as error:
        return str(error)
    return ""
