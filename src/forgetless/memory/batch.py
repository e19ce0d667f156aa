"""A batch as named columns, as a buffer holds it: ``x``, ``y`` and perhaps ``logits``.

Inputs or targets that are a mapping become several columns: ``{"input_ids": …, "attention_mask": …}`` become
``x.input_ids`` and ``x.attention_mask``.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]
Targets = Tensor | Mapping[str, Tensor]

LABELS = ("labels", "label", "y")  # the entries of a batch that hold its labels
# What flash attention gets besides position_ids, from which it follows: where packed sequences begin.
VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


def role(column: str) -> str:
    """Return what a column is part of: "x" for ``x`` and ``x.<key>``, "y" for ``y`` and ``y.<key>``."""
    return column.partition(".")[0]


def size_of(rows: Mapping[str, Tensor]) -> int:
    """Return the number of examples of a batch."""
    return next(iter(rows.values())).shape[0]


def pack(x: Inputs, y: Targets, logits: Tensor | None = None, distill: float = 0.0) -> dict[str, Tensor]:
    """Return a batch as columns of a buffer; the logits only if a repair is to ``distill`` them."""
    if logits is not None and not isinstance(logits, Tensor):
        raise TypeError(f"logits is a {type(logits).__name__}; give the tensor in it, such as output.logits")
    if isinstance(x, Tensor) and isinstance(y, Tensor):  # first, since a test for a mapping takes longer
        columns = {"x": x, "y": y}
    else:
        columns = _columns("x", x) | _columns("y", y)
    if not distill:
        return columns
    if logits is None:
        raise ValueError(f"distill is {distill}, which needs logits: call observe(x, y, logits)")
    return columns | {"logits": logits}


def unpack(rows: Mapping[str, Tensor], name: str = "x") -> Any:
    """Return the inputs (or the targets, ``name="y"``) among a buffer's columns: a tensor, or a mapping."""
    if name in rows:
        return rows[name]
    return {key.removeprefix(f"{name}."): column for key, column in rows.items() if key.startswith(f"{name}.")}


def split_labels(x: Any) -> tuple[Inputs, Targets]:
    """Return the inputs and labels of a batch whose labels are among the inputs, as in Hugging Face's batches."""
    label = next((name for name in LABELS if x.get(name) is not None), None) if isinstance(x, Mapping) else None
    if label is None:
        what = f"the entries {', '.join(map(str, x))}" if isinstance(x, Mapping) else f"type {type(x).__name__}"
        raise ValueError(
            f"the batch has no labels: y is missing, and x has {what}. Pass y, or a mapping with labels; "
            "DataCollatorForLanguageModeling(tokenizer, mlm=False) adds them for a language model"
        )
    return {name: value for name, value in x.items() if name != label}, x[label]


def _columns(name: str, value: Any) -> dict[str, Tensor]:
    if not isinstance(value, Mapping):
        return {name: value}
    dropped = VARLEN if "position_ids" in value else ()
    return {f"{name}.{key}": part for key, part in value.items() if key not in dropped}
