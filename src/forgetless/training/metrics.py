"""An accuracy matrix → the numbers of continual learning. numpy only.

``matrix[t][i]`` is the test accuracy on task i after training on task t, both from 0, in percent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

Matrix = Sequence[Sequence[float]]


def accuracy(matrix: Matrix) -> float:
    """Mean over all tasks after the last: (1/T) Σ_i R[T−1, i]."""
    return float(numpy.mean(matrix[-1]))


def anytime(matrix: Matrix) -> list[float]:
    """After each task, the mean over the tasks seen so far: (1/(t+1)) Σ_{i≤t} R[t, i]; of a single row, over all."""
    if len(matrix) == 1:  # all tasks were learned at once
        return [accuracy(matrix)]
    return [float(numpy.mean(row[: t + 1])) for t, row in enumerate(matrix)]


def forgetting(matrix: Matrix) -> float | None:
    """Chaudhry et al. 2018: mean over i < T−1 of max_{i≤t<T−1} R[t, i] − R[T−1, i]; None for a single row.

    The maximum is over what was measured once the task was trained, theirs also over what came before.
    """
    if len(matrix) < 2:
        return None
    values = numpy.asarray(matrix, dtype=float)
    last = len(values) - 1
    return float(numpy.mean([values[i:last, i].max() - values[last, i] for i in range(last)]))


def backward_transfer(matrix: Matrix) -> float | None:
    """Lopez-Paz & Ranzato 2017: mean over i < T−1 of R[T−1, i] − R[i, i]; None for a single row."""
    if len(matrix) < 2:
        return None
    values = numpy.asarray(matrix, dtype=float)
    last = len(values) - 1
    return float(numpy.mean([values[last, i] - values[i, i] for i in range(last)]))


def forward_transfer(matrix: Matrix, untrained: Sequence[float]) -> float | None:
    """Lopez-Paz & Ranzato 2017: mean over i ≥ 1 of R[i−1, i] − b_i, b the accuracies before any training."""
    if len(matrix) < 2:
        return None
    return float(numpy.mean([matrix[i - 1][i] - untrained[i] for i in range(1, len(matrix))]))
