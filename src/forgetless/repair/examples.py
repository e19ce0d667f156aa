"""Turn the examples of a user into a buffer: tensors, columns, a data set, or batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forgetless.memory.batch import LABELS, pack
from forgetless.memory.buffer import Buffer
from forgetless.memory.labels import NO_LABEL, class_labels, has_classes, labelled, with_labels
from forgetless.memory.ragged import concatenated, unpadded
from forgetless.repair.objective import Objective

PLAIN = Objective()
EXPECTED = "(x, y), a mapping of columns, a data set of (input, label), or batches of (x, y)"


def fill_buffer(
    examples: Any,
    device: torch.device | None = None,
    seed: int = 0,
    objective: Objective = PLAIN,
    pad: int = 0,
) -> Buffer:
    """Return a buffer that holds all examples.

        >>> len(fill_buffer((torch.rand(20, 4), torch.arange(20) % 2)))
        20

    Examples without a label (-100) are left out. The others are in random order, so that every eighth one is a sample
    of them. Classes follow each other, so that it is also a sample of all classes.

    Args:
        examples: A ``Buffer``; the tensors ``(x, y)``; a mapping of columns such as ``{"x": …, "y": …}`` or
            ``{"input_ids": …, "labels": …}``; a data set whose items are such pairs or mappings; or an iterable of
            batches of them, such as a ``DataLoader``.
        device: Where the buffer is held. Default: where the examples are.
        seed: The seed of the order and of the buffer.
        objective: What the repair minimises.
        pad: The token with which ``input_ids`` are padded.
    """
    if isinstance(examples, Buffer):
        _check({name: examples[name] for name in examples.columns})
        return with_labels(examples)
    columns = _columns(examples)
    _check(columns)
    columns = objective.targets(unpadded(columns, pad))
    y = columns["y"]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    if has_classes(y):
        order = order[y[order].argsort(stable=True)]
    order = order[labelled(columns)[order]]
    if not len(order):
        raise ValueError(f"examples has no labels that its {len(y)} examples predict: each is a single token")
    columns = {name: column[order.to(column.device)] for name, column in columns.items()}
    buffer = Buffer(len(columns["y"]), device=device, seed=seed, pad=pad)
    buffer.add(columns)
    return buffer


def _columns(examples: Any) -> dict[str, Tensor]:
    """Return examples of any kind as columns of a buffer."""
    if isinstance(examples, Tensor):
        raise ValueError("examples is a tensor without labels; it must be " + EXPECTED)
    if isinstance(examples, Mapping):
        return _from_mapping(examples)
    if _is_pair(examples):
        return _from_pair(*examples)
    if isinstance(examples, str | bytes) or not (hasattr(examples, "__iter__") or hasattr(examples, "__getitem__")):
        raise TypeError(f"examples is a {type(examples).__name__}; it must be {EXPECTED}")
    if hasattr(examples, "__len__") and hasattr(examples, "__getitem__") and not _are_batches(examples):
        return _stacked([_item(examples[index]) for index in range(len(examples))])
    batches = [_columns(batch) for batch in examples]
    if not batches:
        raise ValueError(f"examples holds no batch; it must be {EXPECTED}")
    try:
        return concatenated(batches)
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"the batches of examples differ: {error}; they must have equal shapes") from None


def _from_mapping(columns: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return columns as a buffer names them: ``y``, and ``x`` or ``x.<name>``."""
    label = next((name for name in LABELS if name in columns), None)
    if label is None:
        raise ValueError(
            f"examples has the columns {', '.join(columns)}, but no labels; name theirs y or labels. Those of a causal "
            f"language model are its input_ids, with {NO_LABEL} for padding"
        )
    inputs = {name: torch.as_tensor(column) for name, column in columns.items() if name != label}
    return _from_pair(inputs["x"] if list(inputs) == ["x"] else inputs, columns[label])


def _from_pair(x: Any, y: Any) -> dict[str, Tensor]:
    return pack(x if isinstance(x, Mapping) else torch.as_tensor(x), torch.as_tensor(y))


def _item(item: Any) -> dict[str, Tensor]:
    """Return one example of a data set as columns of one row."""
    pair = not isinstance(item, Mapping) and isinstance(item, Sequence) and len(item) == 2
    if not pair and not isinstance(item, Mapping):
        raise ValueError(f"examples returns items of type {type(item).__name__}; they must be (input, label)")
    try:
        columns = _from_pair(*item) if pair else _from_mapping(item)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"examples returns items that are not tensors or numbers: {error}") from None
    return {name: column[None] for name, column in columns.items()}


def _stacked(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the rows of a data set as columns."""
    if not items:
        raise ValueError(f"examples is empty; it must be {EXPECTED}")
    try:
        columns = concatenated(items)
    except (RuntimeError, KeyError) as error:
        raise ValueError(
            f"examples returns items that cannot be stacked: {error}; they must have equal shapes"
        ) from None
    y = columns["y"]  # MedMNIST's labels are arrays of one number
    return columns | ({"y": y.flatten()} if y.ndim == 2 and y.shape[1] == 1 else {})


def _check(columns: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` for examples on which nothing can be repaired."""
    sizes = {name: len(column) if column.ndim else 1 for name, column in columns.items()}
    if not sizes or not sizes.get("y"):
        raise ValueError("examples is empty; a repair needs examples of the old and of the new data")
    if len(set(sizes.values())) != 1:
        raise ValueError(f"examples has columns of different lengths: {sizes}")
    y = columns["y"]
    if y.is_floating_point():
        return
    if not bool((known := class_labels(y) != NO_LABEL).any()):
        raise ValueError(
            f"examples has no labels: all {len(y)} are {NO_LABEL}; a repair needs the label of each example"
        )
    if has_classes(y) and len(classes := y[known].unique().tolist()) == 1:
        raise ValueError(
            f"examples has only the class {classes[0]}, on which the network would learn to predict nothing else; "
            "it must hold examples of all classes, old and new"
        )


def _are_batches(examples: Any) -> bool:
    """Return whether a list holds batches rather than single examples: inputs and labels both have rows."""
    if not isinstance(examples, list | tuple) or not examples:
        return False
    first = {name: column[0] for name, column in _item(examples[0]).items()}
    y = first.pop("y")
    return y.ndim > 0 and all(x.ndim > 1 and len(x) == len(y) for x in first.values())


def _is_pair(examples: Any) -> bool:
    """Return whether these are the inputs and the labels, rather than two batches or two items."""
    return (
        isinstance(examples, tuple | list)
        and len(examples) == 2
        and not isinstance(examples[1], tuple | list | Mapping)
    )
