"""How far the parameters of a network move, and which groups move most when the data shifts.

Zhao et al., "Does Continual Learning Equally Forget All Parameters?" (ICML 2023), Sec. 4.1 and Eq. 1. A *snapshot* maps
the name of a tensor to its value at the end of an epoch or of a window of steps; a *group* is a
set of such names. Everything here is a pure function: tensors in, tensors out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from forgetless.config.catalogue import unknown

Snapshot = Mapping[str, Tensor]
Changes = dict[str, Tensor]

SETTLE = 3
JUMP = 2.0
FLOOR = 0.3


def change(now: Tensor, before: Tensor) -> Tensor:
    """C = (1/|θ|) · ‖θ_now − θ_before‖₁, the mean absolute change of one tensor, as a 0-d tensor on its device."""
    return _distance(now, before).mean()


def changes(now: Snapshot, before: Snapshot) -> Changes:
    """The change of every tensor of a snapshot."""
    for name in before:
        if now[name].shape != before[name].shape:
            raise ValueError(f"{name} had shape {tuple(before[name].shape)}, now it has {tuple(now[name].shape)}")
    return {name: change(now[name], before[name]) for name in before}


def filter_changes(now: Tensor, before: Tensor) -> Tensor:
    """The change of each filter f of a convolution: (1/|θ_f|) · ‖θ_f,now − θ_f,before‖₁, shape (filters,)."""
    if now.ndim < 2:
        raise ValueError(f"filter_changes needs a weight of two or more dimensions, got shape {tuple(now.shape)}")
    return _distance(now, before).flatten(1).mean(1)


def between_epochs(history: Sequence[Sequence[Snapshot]]) -> dict[tuple[int, int], Changes]:
    """‖θᵗₙ − θᵗₙ₋₁‖ within a task and ‖θᵗ⁺¹₁ − θᵗ_N‖ across two, keyed by the later (task, epoch), both counted from 1.

    ``history[t][n]`` is the snapshot at the end of an epoch. The first epoch of all has no predecessor and no row.
    """
    marks = [(t, n) for t, epochs in enumerate(history) for n in range(len(epochs))]
    return {(t + 1, n + 1): changes(history[t][n], history[u][m]) for (u, m), (t, n) in pairwise(marks)}


def between_tasks(history: Sequence[Sequence[Snapshot]]) -> dict[tuple[int, int], Changes]:
    """‖θᵗ⁺¹ₙ − θᵗₙ‖ between the same epoch n of consecutive tasks, keyed by the later (task, epoch), from 1."""
    return {
        (t + 2, n + 1): changes(later[n], earlier[n])
        for t, (earlier, later) in enumerate(pairwise(history))
        for n in range(min(len(earlier), len(later)))
    }


def between_windows(snapshots: Sequence[Snapshot]) -> list[Changes]:
    """The change from each snapshot to the next: one row fewer than snapshots."""
    return [changes(now, before) for before, now in pairwise(snapshots)]


def group_changes(
    changes: Mapping[str, float], groups: Mapping[str, Collection[str]], sizes: Mapping[str, int]
) -> dict[str, float]:
    """(1/|g|) · Σ_{ℓ∈g} C_ℓ: the mean change of a group's layers, each counted once whatever its size.

    A layer ℓ is what a group has of one module, say the weight and bias of a linear layer; C_ℓ is the mean over all
    its elements; ``changes`` and ``sizes`` hold the mean change and the number of elements of each tensor.
    """
    means = {}
    for group, names in groups.items():
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        total = 0.0
        for tensors in layers.values():
            total += sum(sizes[t] * float(changes[t]) for t in tensors) / sum(sizes[t] for t in tensors)
        means[group] = total / len(layers)
    return means


def sensitivity(changes: Mapping[str, float], statistics: Collection[str] | None = None) -> dict[str, float]:
    """Eq. 1: S_g = G · C_g / Σ_{g'} C_g', where C_g is the change of a group (``group_changes``).

    The mean of S_g over the G groups summed is 1. Deviation from the paper, whose sum runs over all groups: batch-norm
    statistics move so much more than weights that they would swamp it, so the sum leaves them out, G counts the other
    groups, and statistics are scored against that same sum. ``statistics`` names them (default: the groups whose name
    ends in ``.stats``); ``statistics=()`` is the paper's literal reading.
    """
    values = {group: float(value) for group, value in changes.items()}
    for group, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"the change of group {group!r} is {value}, but must be finite and not negative: has training diverged?"
            )
    if statistics is None:
        statistics = [group for group in values if group.endswith(".stats")]
    summed = [group for group in values if group not in statistics] or list(values)
    total = sum(values[group] for group in summed)
    if total == 0:
        raise ValueError(f"none of the groups {', '.join(values)} changed, so no sensitivity can be told")
    return {group: len(summed) * value / total for group, value in values.items()}


def select(
    scores: Mapping[str, float],
    above: float = 1.0,
    groups: str | Collection[str] = "auto",
    units: Iterable[Collection[str]] | None = None,
) -> tuple[str, ...]:
    """The groups to finetune, in the order of ``scores``.

    ``groups="auto"`` takes those with S_g > ``above`` (the paper: 1 for FPF, 0.3 for k-FPF), ``"all"`` takes all, a
    list takes exactly those. With "auto" the groups of a unit are chosen together as soon as one passes; by default
    ``x.affine`` and ``x.stats`` are a unit, so that batch norm is chosen as a whole; ``units=()`` judges each alone.
    """
    if groups == "all":
        return tuple(scores)
    if groups != "auto":
        listed = [groups] if isinstance(groups, str) else list(groups)
        for group in listed:
            if group not in scores:
                raise ValueError(unknown("group", group, scores))
        if not listed:
            raise ValueError(f"groups is empty; give 'auto', 'all' or some of {', '.join(scores)}")
        return tuple(group for group in scores if group in listed)
    passed = {group for group, score in scores.items() if score > above}
    if units is None:
        stems = {group.removesuffix(".stats") for group in scores if group.endswith(".stats")}
        units = [(f"{stem}.affine", f"{stem}.stats") for stem in stems]
    for unit in units:
        if passed & set(unit):
            passed |= set(unit)
    return tuple(group for group in scores if group in passed)


def counts(row: Sequence[float]) -> bool:
    """Whether a window's changes say something: not where nothing moved, nor where a number is not finite."""
    return any(row) and all(map(math.isfinite, row))


def is_boundary(
    row: Sequence[float], recent: Sequence[Sequence[float]], highest: Sequence[float], jump: float, floor: float
) -> bool:
    """Whether a window's changes mark the begin of a new task; see ``boundaries``."""
    moved = [i for i, now in enumerate(row) if now > 0]
    if not moved:
        return False
    over_recent = median(_ratio(row[i], max(past[i] for past in recent)) for i in moved)
    over_highest = median(_ratio(row[i], highest[i]) for i in moved)
    return over_recent > jump and over_highest > floor


def boundaries(
    rows: Sequence[Sequence[float]], settle: int = SETTLE, jump: float = JUMP, floor: float = FLOOR
) -> list[int]:
    """The windows (counted from 0) in which a new task begins, found from the window changes alone.

    ``rows[w]`` holds the change of each tensor over window w. All layers change more when the task switches (Sec.
    4.2): a window begins a new task when its change is more than ``jump`` times the largest of the last ``settle``
    windows and more than ``floor`` times the largest of the whole task, each for the median tensor. The second
    condition keeps out the noise of a converged network. A window in which nothing moved or something is not finite
    does not count, nor does a tensor that did not move in it: that of a head not in use, or of a layer that was frozen.
    A task needs ``settle`` windows before the next can be found. ``benchmarks/boundaries.py`` measures these settings.
    """
    found: list[int] = []
    task: list[Sequence[float]] = []
    for window, row in enumerate(rows):
        if not counts(row):
            continue
        highest = [max(past) for past in zip(*task, strict=True)]
        if len(task) >= settle and is_boundary(row, task[-settle:], highest, jump, floor):
            found.append(window)
            task = []
        task.append(row)
    return found


def _distance(now: Tensor, before: Tensor) -> Tensor:
    if now.shape != before.shape:
        raise ValueError(f"shapes differ: {tuple(now.shape)} now, {tuple(before.shape)} before")
    wide = torch.promote_types(now.dtype, torch.float32)  # bfloat16 has too few digits to average in
    return (now.detach().to(wide) - before.detach().to(now.device, wide)).abs()


def _ratio(now: float, past: float) -> float:
    return now / past if past > 0 else (math.inf if now > 0 else 0.0)
