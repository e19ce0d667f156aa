"""The metrics of continual learning, computed from an accuracy matrix, and their spread over seeds. Imports no torch.

``matrix[t][i]`` is the test accuracy on task ``i`` after training on task ``t``, in percent. Both count from 0, and a
matrix of ``T`` tasks has ``T`` rows. A method that trains on all tasks at once has a single row.
"""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

import numpy

Matrix = Sequence[Sequence[float]]


class MeanStd(NamedTuple):
    """A mean and the sample standard deviation (n − 1) around it."""

    mean: float
    std: float


def mean_std(values: Iterable[float]) -> MeanStd:
    """Return the mean and the sample standard deviation of a metric over seeds.

    >>> mean_std([80.0, 82.0, 84.0])
    MeanStd(mean=82.0, std=2.0)

    The standard deviation of a single value is 0.
    """
    values = list(values)
    return MeanStd(mean(values), stdev(values) if len(values) > 1 else 0.0)


def accuracy(matrix: Matrix) -> float:
    """Return the mean accuracy over all tasks after the last one: (1/T) Σ_i R[T−1, i]."""
    return float(numpy.mean(matrix[-1]))


def anytime(matrix: Matrix) -> list[float]:
    """Return the mean accuracy over the tasks seen so far, after each task: (1/(t+1)) Σ_{i≤t} R[t, i].

    A matrix with a single row has one value: the mean over all tasks.
    """
    if len(matrix) == 1:
        return [accuracy(matrix)]
    return [float(numpy.mean(row[: t + 1])) for t, row in enumerate(matrix)]


def forgetting(matrix: Matrix) -> float | None:
    """Return how far accuracy fell from its peak: the mean over i < T−1 of max_{i≤t<T−1} R[t, i] − R[T−1, i].

    The definition is that of Chaudhry et al. 2018, except that the maximum only covers evaluations made after the task
    was trained. A matrix with a single row has no forgetting: None.
    """
    if len(matrix) < 2:
        return None
    last = len(matrix) - 1
    return float(numpy.mean([max(row[i] for row in matrix[i:last]) - matrix[last][i] for i in range(last)]))


def backward_transfer(matrix: Matrix) -> float | None:
    """Return the mean over i < T−1 of R[T−1, i] − R[i, i] (Lopez-Paz & Ranzato 2017), or None for a single row."""
    if len(matrix) < 2:
        return None
    return float(numpy.mean([matrix[-1][i] - matrix[i][i] for i in range(len(matrix) - 1)]))


def forward_transfer(matrix: Matrix, untrained: Sequence[float]) -> float | None:
    """Return the mean over i ≥ 1 of R[i−1, i] − b_i (Lopez-Paz & Ranzato 2017), or None for a single row.

    ``untrained`` holds the accuracies b before any training.
    """
    if len(matrix) < 2:
        return None
    return float(numpy.mean([matrix[i - 1][i] - untrained[i] for i in range(1, len(matrix))]))
