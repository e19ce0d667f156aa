"""Sequences of different lengths in one buffer: tokens, their masks and their labels.

A ragged column has shape (examples, longest). Its sequences begin at the left and are padded at the right: with
``NO_LABEL`` in labels, the padding token in ``input_ids``, and 0 elsewhere. The column ``LENGTHS`` holds the length of
each sequence, by which a draw is cut to its longest and padding stays out of the hash of an example.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forgetless.memory.batch import role
from forgetless.memory.labels import NO_LABEL

LENGTHS = "lengths"  # one row per example, with the length of its sequence in each ragged column, by name
TOKENS = 16384  # per pass; with a vocabulary of 50,000 the logits take 3 GB
INPUTS, MASK, POSITIONS = "x.input_ids", "x.attention_mask", "x.position_ids"
Rows = Mapping[str, Tensor]


def ragged(rows: Rows) -> tuple[str, ...]:
    """Return the columns that hold sequences of tokens, in alphabetical order.

    There are none if the network would see their padding, since neither a mask nor labels per token hide it. There are
    none next to stored logits either, whose shape is fixed.
    """
    if "logits" in rows or len({len(c) if isinstance(c, Tensor) and c.ndim else None for c in rows.values()}) != 1:
        return ()
    names = sorted(name for name, column in rows.items() if name != LENGTHS and _is_sequence(column))
    tokens = any(role(name) == "x" and rows[name].dtype in (torch.int32, torch.int64) for name in names)
    hides = MASK in names or any(role(name) == "y" for name in names)
    return tuple(names) if tokens and hides else ()


def fill_value(name: str, pad: int = 0) -> int:
    """Return what follows the end of a sequence in the column ``name``; ``pad`` is the padding token."""
    return NO_LABEL if role(name) == "y" else pad if name.endswith("input_ids") else 0


@torch.no_grad()
def unpadded(rows: Rows, pad: int = 0) -> dict[str, Tensor]:
    """Return a batch whose sequences begin at the left, with their lengths.

    Several sequences that ``position_ids`` shows to be packed into one row become rows of their own, for which it
    synchronises with the GPU. A batch without ragged columns is returned as it is.
    """
    names = () if LENGTHS in rows else ragged(rows)
    if not names:
        return dict(rows)
    device = rows[names[0]].device
    if (pieces := _pieces(rows)) is None:
        columns = dict(rows)
        lengths = torch.tensor([[rows[name].shape[1] for name in names]], device=device).repeat(len(rows[names[0]]), 1)
    else:
        columns = {name: _split(column, pieces, fill_value(name, pad)) for name, column in rows.items()}
        lengths = torch.tensor([[end - start] * len(names) for start, end in pieces], device=device)
    return _aligned(columns, names, lengths, pad)


@torch.no_grad()
def conformed(rows: Rows, held: Rows) -> dict[str, Tensor]:
    """Return rows without padding with the mask and the positions that the columns ``held`` have, and no others.

    Both follow from the lengths, so batches with and without them, packed or not, can share a buffer.
    """
    if LENGTHS not in rows or LENGTHS not in held or INPUTS not in rows or {*rows} == {*held}:
        return dict(rows)
    names, position = ragged(rows), torch.arange(rows[INPUTS].shape[1], device=rows[INPUTS].device)
    lengths = dict(zip(names, rows[LENGTHS].unbind(1), strict=True))
    inside = position < lengths[INPUTS][:, None]
    columns = {name: column for name, column in rows.items() if name not in (MASK, POSITIONS, LENGTHS)}
    for name, made in ((MASK, inside), (POSITIONS, position * inside)):
        if name in held:
            columns[name] = rows.get(name, made.to(held[name].dtype))
    tokens = lengths[INPUTS]
    return columns | {LENGTHS: torch.stack([lengths.get(name, tokens) for name in ragged(columns)], 1)}


def widened(rows: Rows, widths: Mapping[str, int], pad: int = 0) -> dict[str, Tensor]:
    """Return a batch whose ragged columns are padded to these widths."""
    more = {name: width - rows[name].shape[1] for name, width in widths.items()}
    wider = {name: F.pad(rows[name], (0, n), value=fill_value(name, pad)) for name, n in more.items() if n}
    return {**rows, **wider}


def concatenated(batches: Sequence[Rows], pad: int = 0) -> dict[str, Tensor]:
    """Return batches with the same columns as one batch, as wide as the widest."""
    if len(batches) == 1:
        return dict(batches[0])
    names = ragged(batches[0])
    widths = {name: max(batch[name].shape[1] for batch in batches) for name in names}
    wide = [widened(batch, widths, pad) for batch in batches]
    return {name: torch.cat([batch[name] for batch in wide]) for name in batches[0]}


def pass_size(rows: Rows, most: int) -> int:
    """Return how many examples a pass through the network takes: ``most``, or fewer if they have many tokens."""
    widest = max((rows[name].shape[1] for name in ragged(rows)), default=0)
    return max(1, min(most, TOKENS // max(1, widest)))


def cut(rows: Rows) -> dict[str, Tensor]:
    """Return rows of a buffer, each ragged column cut to its longest sequence. Synchronises with the GPU."""
    columns = dict(rows)
    if (lengths := columns.pop(LENGTHS, None)) is None or not len(lengths):
        return columns
    for name, longest in zip(ragged(columns), lengths.amax(0).tolist(), strict=True):
        columns[name] = columns[name][:, :longest]
    return columns


def content(rows: Rows) -> dict[str, Tensor]:
    """Return rows in which padding is 0, so that it adds nothing to a sum over a sequence."""
    columns = dict(rows)
    for index, name in enumerate(ragged(rows) if LENGTHS in rows else ()):
        column = rows[name].long()
        position = torch.arange(column.shape[1], device=column.device)
        columns[name] = column * (position < rows[LENGTHS][:, index : index + 1])
    return columns


def _is_sequence(column: object) -> bool:
    return (
        isinstance(column, Tensor) and column.ndim == 2 and not column.is_floating_point() and not column.is_complex()
    )


def _aligned(columns: dict[str, Tensor], names: Sequence[str], lengths: Tensor, pad: int) -> dict[str, Tensor]:
    """Return a batch without the padding that its mask shows: before a sequence, after it, and in its length."""
    mask = columns.get(MASK)
    if mask is None or not mask.numel():
        return columns | {LENGTHS: lengths}
    width, device = mask.shape[1], mask.device
    aligned = [name for name in names if columns[name].shape[1] == width]
    # A label counts as content too: with an encoder and a decoder, the mask is not that of the labels.
    labels = [columns[name] != NO_LABEL for name in aligned if role(name) == "y"]
    present = torch.stack([mask != 0, *(label.to(device) for label in labels)]).any(0).long()
    first = present.argmax(1, keepdim=True)
    end = width - present.flip(1).argmax(1, keepdim=True)
    length = (end - first) * present.amax(1, keepdim=True)
    position = torch.arange(width, device=device)
    source, outside = (position + first) % width, position >= length
    for name in aligned:
        moved = columns[name].gather(1, source.to(columns[name].device))
        columns[name] = moved.masked_fill(outside.to(moved.device), fill_value(name, pad))
    masked = torch.tensor([name in aligned for name in names], device=device)
    return columns | {LENGTHS: torch.where(masked, length, lengths.to(device))}


def _pieces(rows: Rows) -> list[tuple[int, int]] | None:
    """Return where packed sequences begin and end in the flattened rows; None if no row holds several."""
    positions = rows.get(POSITIONS)
    if positions is None or any(column.shape != positions.shape for column in rows.values()):
        return None
    starts = positions == 0
    if MASK in rows:
        starts = starts & (rows[MASK] != 0)
    starts[:, 0] = True
    if not bool(starts[:, 1:].any()):
        return None
    bounds = [*starts.flatten().nonzero()[:, 0].tolist(), starts.numel()]
    return [(start, end) for start, end in pairwise(bounds) if end - start > 1]  # one token predicts nothing


def _split(column: Tensor, pieces: Sequence[tuple[int, int]], fill: int) -> Tensor:
    """Return pieces of the flattened rows as rows of their own."""
    tokens = column.flatten()
    return pad_sequence([tokens[start:end] for start, end in pieces], True, fill)
