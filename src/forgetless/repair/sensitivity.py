"""Measure how far the parameters of a network move, and which groups move most when the data shifts.

Zhao et al., "Does Continual Learning Equally Forget All Parameters?" (ICML 2023), Sec. 4.1 and Eq. 1. Everything here
is a pure function. A *snapshot* maps the name of each tensor to its value; a *group* is a set of such names.
"""

import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from forgetless.config.catalogue import unknown

Snapshot = Mapping[str, Tensor]


def changes(now: Snapshot, before: Snapshot) -> dict[str, Tensor]:
    """Return C = (1/|θ|) · ‖θ_now − θ_before‖₁ of every tensor: its mean absolute change, as a 0-d tensor."""
    return {name: _distance(now[name], before[name], name).mean() for name in before}


def filter_changes(now: Tensor, before: Tensor) -> Tensor:
    """Return the change of each filter f of a convolution: (1/|θ_f|) · ‖θ_f,now − θ_f,before‖₁, shape (filters,)."""
    return _distance(now, before).flatten(1).mean(1)


def group_changes(
    changes: Mapping[str, float], groups: Mapping[str, Collection[str]], sizes: Mapping[str, int]
) -> dict[str, float]:
    """Return C_g = (1/|g|) · Σ_{ℓ∈g} C_ℓ for each group: the mean change of its layers.

    A layer ℓ is what a group holds of one module, such as the weight and bias of a linear layer. C_ℓ is the mean over
    all its elements. Each layer counts once, whatever its size. ``changes`` and ``sizes`` hold the mean change and the
    number of elements of each tensor.
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
    """Return S_g = G · C_g / Σ_{g'} C_g', Eq. 1 of the paper, for each group.

    The mean of S_g over the G groups of the sum is 1. The paper sums over all groups. Deviation: batch-norm statistics
    move so much more than weights that they would dominate the sum. Here the sum leaves them out, G counts the other
    groups, and the statistics are scored against that same sum.

        >>> sensitivity({"conv1": 1.0, "fc": 3.0, "bn.stats": 36.0})
        {'conv1': 0.5, 'fc': 1.5, 'bn.stats': 18.0}

    Args:
        changes: The change C_g of each group; see ``group_changes``.
        statistics: The groups to leave out of the sum. Default: those whose name ends in ``.stats``. ``()`` is the
            paper's formula.

    Returns:
        S_g of each group.
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
        raise ValueError(f"none of the groups {', '.join(values)} changed, so their sensitivity is unknown")
    return {group: len(summed) * value / total for group, value in values.items()}


def select(
    scores: Mapping[str, float],
    above: float = 1.0,
    groups: str | Collection[str] = "auto",
    units: Iterable[Collection[str]] | None = None,
) -> tuple[str, ...]:
    """Return the groups to finetune, in the order of ``scores``.

        >>> select({"conv1": 0.5, "bn.affine": 0.1, "bn.stats": 18.0, "fc": 1.5})
        ('bn.affine', 'bn.stats', 'fc')

    Args:
        scores: S_g of each group; see ``sensitivity``.
        above: With "auto", the threshold that S_g must exceed (the paper: 1 for FPF, 0.3 for k-FPF).
        groups: "auto" for the groups above the threshold, "all", or the names of groups.
        units: With "auto", sets of groups that are selected together as soon as one of them passes. Default (a
            deviation from the paper): ``x.affine`` and ``x.stats``, so that batch norm is selected as a whole. ``()``
            judges each group alone.

    Returns:
        The names of the selected groups.
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


def _distance(now: Tensor, before: Tensor, name: str = "the tensor") -> Tensor:
    if now.shape != before.shape:
        raise ValueError(f"{name} had shape {tuple(before.shape)}, now it has {tuple(now.shape)}")
    wide = torch.promote_types(now.dtype, torch.float32)  # bfloat16 has too few digits to average in
    return (now.detach().to(wide) - before.detach().to(now.device, wide)).abs()
