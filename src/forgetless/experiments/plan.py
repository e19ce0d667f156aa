"""Plans: TOML files that expand into runs. Imports no torch.

Every list in a plan expands into a grid. The settings at the top apply to every ``[[runs]]`` block, and each block
expands into a grid of its own (docs/runs.md has an example). ``seeds = 3`` is short for ``seed = [0, 1, 2]``.

For a setting whose value is itself a list (``groups``, ``freeze``, ``order``), a list of lists expands into the grid.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgetless.config.fields import check_value
from forgetless.experiments.jobs import Planned
from forgetless.experiments.settings import resolve, run_settings
from forgetless.experiments.storage import read_toml


def read_plan(file: Path) -> list[Planned]:
    """Return the runs of a plan file; errors name the file and the setting."""
    values = read_toml(file)
    try:
        return expand_plan(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def expand_plan(values: Mapping[str, Any]) -> list[Planned]:
    """Return the runs of a plan file's content in their order, without duplicates."""
    shared = {name: value for name, value in values.items() if name != "runs"}
    blocks = values.get("runs", [{}])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"runs is {blocks!r}; it must be blocks, each headed [[runs]]")
    for block in [shared, *blocks]:
        _check_block(block)
    planned: dict[str, Planned] = {}
    for block in blocks:
        given = (shared | block).items()
        choices = {"seed" if name == "seeds" else name: _choices(name, value) for name, value in given}
        for combination in itertools.product(*choices.values()):
            point = dict(zip(choices, combination, strict=True))
            if not isinstance(point.get("stream"), str):
                raise ValueError("stream is missing: every run needs one")
            if not isinstance(point.get("method", ""), str):
                raise ValueError(f"method is {point['method']!r}; it must be a name")
            settings, sources = resolve(point.pop("stream"), point.pop("method", None), point)
            planned.setdefault(settings.id, Planned(settings, sources))
    return list(planned.values())


def _check_block(block: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for nested blocks, and for both seed and seeds."""
    for name, value in block.items():
        if any(isinstance(member, dict) for member in (value if isinstance(value, list) else [value])):
            raise ValueError(f"{name} is a block; only blocks headed [[runs]] are valid")
    if "seed" in block and "seeds" in block:
        raise ValueError(f"seeds is {block['seeds']!r} and seed is {block['seed']!r}; set only one of them")


def _choices(name: str, value: Any) -> list[Any]:
    """Return the values that a setting takes in a grid."""
    if name == "seeds":
        return list(range(check_value("seeds", value, int, least=1)))
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ValueError(f"{name} is an empty list; it must have at least one value")
    declared = run_settings().get(name)
    is_range = any(isinstance(member, list) or member in ("auto", "all") for member in value)
    return value if is_range or declared is None or not declared.takes_list else [value]
