"""Plain data: what a state may hold, so that a checkpoint can be read without executing anything."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as JSON data, and collect its tensors in ``tensors`` under the names that replace them.

    Raise ``TypeError`` if it holds anything but plain data and tensors.
    """
    if isinstance(value, Tensor):
        name = str(id(value))
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: flatten(part, tensors) for key, part in value.items()}
        for key in value:
            if not isinstance(key, bool | int | float | str | None):
                raise TypeError(f"a {type(key).__name__} as a key cannot be kept in a checkpoint, only plain data")
        return {"$items": [[key, flatten(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [flatten(part, tensors) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint, only plain data and tensors")


def unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what ``flatten`` was given, with lists in place of tuples."""
    if isinstance(value, dict):
        if set(value) == {"$tensor"}:
            return tensors[value["$tensor"]]
        if set(value) == {"$items"}:
            return {key: unflatten(part, tensors) for key, part in value["$items"]}
        return {key: unflatten(part, tensors) for key, part in value.items()}
    return [unflatten(part, tensors) for part in value] if isinstance(value, list) else value


def to_hashable(value: Any) -> Any:
    """Return ``value`` with tuples in place of lists, as it was before ``flatten``."""
    return tuple(map(to_hashable, value)) if isinstance(value, list | tuple) else value


def copied(value: Any, device: str | None = None) -> Any:
    """Return a copy whose tensors share no memory with ``value``, on ``device`` if one is given."""
    if isinstance(value, Tensor):
        return value.detach().to(device or value.device, copy=True)
    if isinstance(value, Mapping):
        return {key: copied(part, device) for key, part in value.items()}
    return [copied(part, device) for part in value] if isinstance(value, list | tuple) else value
