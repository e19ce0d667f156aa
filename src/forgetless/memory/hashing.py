"""Hash the content of examples, so that repeats are recognised on any device."""

from collections.abc import Mapping
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

LOW_BITS = 2**62 - 1  # hashes have these bits, so they are below ``slots.EMPTY``
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2**64 / golden ratio, as torch writes it: signed
Integers = TypeVar("Integers", Tensor, "np.ndarray[Any, np.dtype[np.int64]]")


def mix(number: Integers) -> Integers:
    """Return a bijective scramble of 64-bit integers, after the last steps of SplitMix64 (Steele et al. 2014)."""
    number = (number ^ (number >> 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    number = (number ^ (number >> 27)) * (0x94D049BB133111EB - 2**64)
    return number ^ (number >> 31)


def words(column: Tensor) -> Tensor:
    """Return the bits of each row as a row of integers, of 32 bits where the row's length allows it."""
    rows = column.detach().contiguous()
    rows = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    width = rows.shape[1] * rows.element_size()
    if rows.storage_offset() * rows.element_size() % 4:
        rows = rows.clone()  # a view as wider integers must be aligned
    return rows.view(torch.int32 if width % 4 == 0 else torch.int16 if width % 2 == 0 else torch.int8)


def word_weights(name: str, column: Tensor) -> Tensor:
    """Return one pseudo-random odd number per word of a row of the column ``name``."""
    count = words(column[:1]).shape[1]
    position = torch.arange(count, dtype=torch.int64, device=column.device)
    return mix((position + (crc32(name.encode()) << 31)) * GOLDEN) | 1


def content_keys(batch: Mapping[str, Tensor], weights: Mapping[str, Tensor], salt: int) -> Tensor:
    """Return a 62-bit hash of each example over the columns in ``weights``: Σ weight · word, modulo 2^64, then mixed.

    Two examples that differ have the same key with a probability of about 2^-62, and of at most 2^-33.
    """
    sums = [(words(batch[name]) * weight).sum(1) for name, weight in weights.items()]
    return mix(sum(sums[1:], sums[0] + salt)) & LOW_BITS


def host_content_keys(batch: Mapping[str, Tensor], weights: Mapping[str, Tensor], salt: int) -> Tensor:
    """Return ``content_keys`` of a batch on the CPU, where NumPy is faster than torch."""
    pairs = [(words(batch[name]).numpy(), weight.numpy()) for name, weight in weights.items()]
    sums = [np.einsum("ij,j->i", rows, weight) for rows, weight in pairs]
    return torch.from_numpy(mix(sum(sums[1:], sums[0] + salt)) & LOW_BITS)
