"""Score the groups of a network's parameters: which of them should a repair finetune?

Every score is computed from the weights before and after a shift of the data (θ_A and θ_B), their difference Δ, and the
gradient g of the loss on examples of the buffer at θ_B. Scores are sums over the elements of a group unless stated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.repair.groups import float_tensors
from forgetless.repair.sensitivity import changes, group_changes
from pairs import Examples

State = dict[str, Tensor]
Score = dict[str, float]
MICROBATCH = 8  # examples whose gradients are squared together for the Fisher information
EPSILON = 1e-8
PROBE = 1e-2  # length of the step that measures the curvature, relative to the weights of the group
STEPS = [10 ** (-0.5 * power) for power in range(1, 7)]  # lengths of the steps of a line search, likewise
DAMPINGS = (0.001, 0.01, 0.1, 1.0, 100.0)


class Gradient(NamedTuple):
    """The mean gradient by parameter, the means of two halves of the examples, and the mean of its squares."""

    mean: State
    halves: tuple[State, State]
    squares: State
    products: dict[str, Tensor]  # by parameter, the inner products of the gradients of all microbatches


def state(network: nn.Module) -> State:
    """Return a copy of every parameter and float buffer."""
    return {name: tensor.detach().clone() for name, tensor in float_tensors(network).items()}


@torch.no_grad()
def load(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a network."""
    present = float_tensors(network)
    for name, tensor in tensors.items():
        present[name].copy_(tensor)


def gradient(network: nn.Module, examples: Examples, microbatch: int = MICROBATCH, products: bool = False) -> Gradient:
    """Return the gradient of the mean loss, in evaluation mode; ``products`` takes memory for each microbatch."""
    network.eval()
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    sums = [{name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(3)]
    count = max(2, len(examples.x) // microbatch)
    rows = []
    for index in range(count):
        x, y = examples.rows(slice(index, None, count))
        values = torch.autograd.grad(F.cross_entropy(network(x), y), list(parameters.values()))
        torch._foreach_add_(list(sums[index % 2].values()), values)
        torch._foreach_addcmul_(list(sums[2].values()), values, values)
        if products:
            rows.append(values)
    first, second, squares = sums
    mean = {name: (first[name] + second[name]) / count for name in parameters}
    halves = tuple({name: tensor / (count // 2) for name, tensor in half.items()} for half in (first, second))
    stacked = [torch.stack(column).flatten(1) for column in zip(*rows, strict=True)]
    inner = {name: tensor @ tensor.T for name, tensor in zip(parameters, stacked, strict=False)}
    return Gradient(mean, halves, {name: tensor / count for name, tensor in squares.items()}, inner)  # type: ignore[arg-type]


@torch.no_grad()
def loss(network: nn.Module, examples: Examples) -> float:
    """Return the mean loss, in evaluation mode."""
    network.eval()
    chunks = zip(examples.x.split(256), examples.y.split(256), strict=True)
    losses = torch.stack([F.cross_entropy(network(x), y) * len(x) for x, y in chunks])
    return float(losses.sum()) / len(examples.x)


def dot(left: Mapping[str, Tensor], right: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """Return the sum of products over the named tensors."""
    return float(sum((left[name] * right[name]).sum() for name in names))


def displacement_scores(
    before: State, after: State, groups: Mapping[str, Collection[str]], parameters: Collection[str]
) -> dict[str, Score]:
    """Return the scores that need no examples: how far each group moved."""
    moved = {name: after[name] - before[name] for name in after}
    of_tensors = {name: float(change) for name, change in changes(after, before).items()}
    sizes = {name: tensor.numel() for name, tensor in after.items()}
    scores: dict[str, Score] = {name: {} for name in ("eq1", "relative", "l1", "l2", "size")}
    for group, names in groups.items():
        trained = [name for name in names if name in parameters]
        parts = [trained, [name for name in names if name not in parameters]]  # weights, and statistics if any
        scores["eq1"][group] = max(*group_changes(of_tensors, {"": parts[0]}, sizes).values(), *(
            group_changes(of_tensors, {"": part}, sizes)[""] for part in parts[1:] if part
        ), 0.0)  # fmt: skip
        scores["l1"][group] = float(sum(moved[name].abs().sum() for name in trained))
        scores["size"][group] = sum(sizes[name] for name in trained)
        scores["l2"][group] = dot(moved, moved, trained) ** 0.5
        scores["relative"][group] = (dot(moved, moved, trained) / dot(before, before, trained)) ** 0.5
    return scores


def gradient_scores(
    network: nn.Module, before: State, after: State, groups: Mapping[str, Collection[str]], examples: Examples
) -> dict[str, Score]:
    """Return the scores that need the gradient of examples; the network ends with the weights ``after``."""
    path = {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        load(network, {name: before[name].lerp(after[name], share) for name in after})
        path[share] = gradient(network, examples, products=share == 1)
    here = path[1.0]
    average = {
        "trapezoid": {0.0: 1 / 2, 1.0: 1 / 2},
        "midpoint": {0.5: 1.0},
        "path": {0.0: 7 / 90, 0.25: 32 / 90, 0.5: 12 / 90, 0.75: 32 / 90, 1.0: 7 / 90},  # Boole's rule
    }
    means: dict[str, State] = {
        rule: {n: torch.stack([w * path[share].mean[n] for share, w in weights.items()]).sum(0) for n in here.mean}
        for rule, weights in average.items()
    }
    moved = {name: after[name] - before[name] for name in here.mean}
    squared = {name: tensor**2 for name, tensor in moved.items()}
    adam = {name: tensor / (here.squares[name].sqrt() + EPSILON) for name, tensor in here.mean.items()}
    sign = {name: tensor.sign() for name, tensor in here.mean.items()}
    start = loss(network, examples)
    scores: dict[str, Score] = {}

    def put(score: str, group: str, value: float) -> None:
        scores.setdefault(score, {})[group] = value

    for group, names in groups.items():
        trained = [name for name in names if name in here.mean]
        size = sum(after[name].numel() for name in trained)
        norm2 = dot(here.mean, here.mean, trained)
        put("taylor", group, dot(moved, here.mean, trained))
        for rule, values in means.items():
            put(rule, group, dot(moved, values, trained))
        put("fisher", group, dot(here.squares, squared, trained))
        put("ewc", group, dot(path[0.0].squares, squared, trained))
        put("norm2", group, norm2)
        put("norm", group, norm2**0.5)
        put("norm2_per_parameter", group, norm2 / size)
        put("absolute", group, dot(here.mean, sign, trained))
        put("halves", group, dot(*here.halves, trained))
        inner = sum((here.products[name] for name in trained), torch.zeros(())).double()
        for damping in DAMPINGS:
            put(f"natural{damping:g}", group, natural(inner, inner, damping))
            put(f"natural_halves{damping:g}", group, natural(inner[::2, ::2], inner[1::2, ::2], damping))
        put("adam", group, dot(here.mean, adam, trained))
        put("saliency", group, float(sum((here.mean[name] * after[name]).abs().sum() for name in trained)))
        put("scaled", group, sum((dot(here.mean, here.mean, [n]) * dot(after, after, [n])) ** 0.5 for n in trained))
        for direction, values in (("newton", here.mean), ("adam_newton", adam)):
            bend = curvature(network, after, here.mean, values, trained, examples)
            slope = dot(here.mean, values, trained)
            put(direction, group, slope**2 / max(abs(bend), EPSILON))
        for direction, values in (("line", here.mean), ("adam_line", adam), ("sign_line", sign)):
            put(direction, group, start - min(start, lowest(network, after, values, trained, examples)))
    return scores


def natural(inner: Tensor, across: Tensor, damping: float) -> float:
    """Return h'(F + λ)⁻¹g: the fall of the loss that a step of damped natural gradient promises.

    ``inner`` holds the inner products of the gradients of the microbatches that make F and their mean g, and ``across``
    those with the microbatches of mean h. λ is a share of the trace of F.
    """
    count = len(inner)
    fisher = inner / count
    fisher = fisher + damping * fisher.trace() * torch.eye(count, dtype=inner.dtype, device=inner.device)
    weights = torch.linalg.solve(fisher, torch.ones(count, dtype=inner.dtype, device=inner.device))
    return float((across @ weights).mean() / count)


def curvature(
    network: nn.Module, after: State, slope: State, direction: State, names: Collection[str], examples: Examples
) -> float:
    """Return d'Hd of a direction d within a group, from the difference of two gradients."""
    step = PROBE * math.sqrt(dot(after, after, names) / max(dot(direction, direction, names), 1e-30))
    load(network, {name: after[name] - step * direction[name] for name in names})
    there = gradient(network, examples, microbatch=128).mean
    load(network, {name: after[name] for name in names})
    return (dot(slope, direction, names) - dot(there, direction, names)) / step


def lowest(network: nn.Module, after: State, direction: State, names: Collection[str], examples: Examples) -> float:
    """Return the lowest loss on a line from the weights of a group, against a direction."""
    unit = math.sqrt(dot(after, after, names) / max(dot(direction, direction, names), 1e-30))
    losses = []
    for step in STEPS:
        load(network, {name: after[name] - step * unit * direction[name] for name in names})
        losses.append(loss(network, examples))
    load(network, {name: after[name] for name in names})
    return min(filter(math.isfinite, losses), default=math.inf)
