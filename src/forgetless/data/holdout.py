"""Choose which examples of a data set are held out as its test or validation set."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor


def stratified(y: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Return a random mask over this share of every class: at least one example of each class, and never all."""
    mask = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique().tolist():
        rows = (y.cpu() == label).nonzero()[:, 0]
        if len(rows) < 2:
            raise ValueError(f"class {label} has 1 example; holding out a share of {fraction} needs 2 or more")
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        mask[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return mask


def held_out_rows(tasks: Sequence[tuple[Tensor, Tensor]], fraction: float, generator: torch.Generator) -> list[Tensor]:
    """Return a stratified mask for the examples and labels ``(x, y)`` of each task.

    Tasks with equal labels share one mask. Where tasks have classes in common, an example that recurs is held out of
    all of them or of none.
    """
    classes = [set(y.unique().tolist()) for _, y in tasks]
    decisions: dict[bytes, list[bool]] = {}  # by content: whether each copy of an example is held out
    masks: list[Tensor] = []
    for number, (x, y) in enumerate(tasks):
        equal = (mask for mask, (_, labels) in zip(masks, tasks, strict=False) if torch.equal(labels, y))
        mask = next(equal, None)
        if mask is None:
            mask = stratified(y, fraction, generator)
            if any(classes[number] & other for place, other in enumerate(classes) if place != number):
                _repeat_decisions(x, mask, decisions)
        masks.append(mask)
    return masks


def _repeat_decisions(x: Tensor, mask: Tensor, decisions: dict[bytes, list[bool]]) -> None:
    """Overwrite ``mask`` for examples that an earlier task decided on; remember its decisions for the others."""
    copies: Counter[bytes] = Counter()
    for row, values in enumerate(x.cpu().contiguous().reshape(len(x), -1).view(torch.uint8).numpy()):
        digest = blake2b(values, digest_size=16).digest()
        decided = decisions.setdefault(digest, [])
        if copies[digest] == len(decided):
            decided.append(bool(mask[row]))
        mask[row] = decided[copies[digest]]
        copies[digest] += 1
