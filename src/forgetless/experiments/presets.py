"""Presets: the settings a run starts from, which ``presets.toml`` holds as data. Imports no torch."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from forgetless.experiments.storage import read_toml
from forgetless.repair.settings import Finetune

Values = Mapping[str, Any]


@cache
def preset_table(name: str) -> Values:
    """Return a table of ``presets.toml``, such as ``"stream_defaults"``, by stream or by method."""
    return read_toml(Path(__file__).with_suffix(".toml"))[name]  # type: ignore[no-any-return]


def repair_defaults(repair: str) -> Values:
    """Return the defaults of ``"fpf"`` or ``"k-fpf"``, by their flat names."""
    finetune = Finetune() if repair == "fpf" else Finetune.k_fpf()
    values = {"steps": finetune.steps, "threshold": finetune.threshold, "ft_lr": finetune.lr}
    return values if finetune.every is None else {**values, "every": finetune.every}


def recipe(stream: str, network: str | None = None) -> dict[str, tuple[Any, str]]:
    """Return the settings of the recommended recipe on a stream by name, its method included, each as (value, source).

    What the recipe leaves open is the stream's default. Settings that were searched for a stream are not part of it.
    """
    defaults = preset_table("stream_defaults").get(stream, {})
    values = {name: (value, f"default of {stream}") for name, value in defaults.items()}
    by_network = preset_table("recipe_by_network").get(network or defaults.get("network", "mlp"), {})
    return values | {
        name: (value, "recommended recipe") for name, value in (preset_table("recipe") | by_network).items()
    }


def preset(
    stream: str, method: str, repair: str, buffer: int, *, distils: bool = False, network: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Return the presets of a run by name, each as (value, source). Later sources override earlier ones.

    Some values depend on the size of the buffer. A repair that distils and a network that is not the stream's default
    have presets of their own.
    """
    chosen: dict[str, tuple[Any, str]] = {}

    def take(values: Values, source: str) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                size = min(value, key=lambda size: abs(int(size) - buffer))
                chosen[name] = (value[size], f"{source}, buffer {size}")
            else:
                chosen[name] = (value, source)

    defaults = preset_table("stream_defaults").get(stream, {})
    take(defaults, f"default of {stream}")
    authors = preset_table("der_authors")
    lender = stream if stream in authors else preset_table("borrowed").get(stream, "")
    take(authors.get(lender, {}).get(preset_table("extends").get(method, method), {}), f"DER authors, {lender}")
    take(preset_table("method_authors").get(lender, {}).get(method, {}), f"authors of {method}, {lender}")
    if defaults.get("network", "mlp") != "mlp":
        take(preset_table("large_network").get(method, {}), "for its cost with a large network")
    if method == "mir" and stream in preset_table("mir_candidates"):
        take({"candidates": preset_table("mir_candidates")[stream]}, "five times the replay")
    rows = [method]
    if repair != "none":
        take(repair_defaults(repair), f"default of {repair}")
        take(preset_table("repair_by_method").get(method, {}).get(repair, {}), f"{repair} around {method}")
        take(preset_table("repair_by_stream").get(stream, {}).get(repair, {}), f"{repair} on {stream}")
        rows.append(f"{repair}+{method}")
    if distils and repair == "k-fpf":
        rows.append(f"k-fpf-kd+{method}")
    for row in rows:
        take(preset_table("searched").get(stream, {}).get(row, {}), f"searched on validation, {row}")
    searched = preset_table("searched_for").get(stream, {}).get(network, {})
    for row in rows:
        take(searched.get(row, {}), f"searched on validation, {row} with {network}")
    return chosen
