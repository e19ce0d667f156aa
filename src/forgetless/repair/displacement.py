"""Score the groups of a network by how much their displacement raised the loss on some examples."""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.shards import compute_device, is_sharded, reshard, shard, shard_count
from forgetless.memory.buffer import Buffer
from forgetless.memory.ragged import pass_size
from forgetless.repair.gradients import Gradients
from forgetless.repair.held_out import evaluating, parts
from forgetless.repair.objective import Objective

PART = 32  # examples per backward pass
COVER = 0.9  # the highest scores are those that make up this share of the positive ones


def displacement_scores(
    network: nn.Module,
    buffer: Buffer,
    objective: Objective,
    before: Mapping[str, Tensor],
    groups: Mapping[str, Collection[str]],
    processes: Processes = ALONE,
) -> dict[str, float | None]:
    """Return Σ Δθ · ∇L of each group, with Δθ = θ − θ_before and L the mean loss on the buffer's examples.

    To first order this is how much lower the loss would be if the group's displacement were taken back. A group without
    parameters that take gradients, such as running statistics, has no score. Parameters that ``before`` does not have
    in this shape, such as those of a head that has grown, are left out.
    """
    reshard(network)
    parameters = {
        name: value
        for name, value in network.named_parameters()
        if value.requires_grad and name in before and before[name].shape == shard(value).shape
    }
    device, sharded = compute_device(network), is_sharded(network)
    totals: dict[str, Tensor] = {}
    gradients = Gradients(network)
    with torch.inference_mode(False), torch.enable_grad(), evaluating(network):
        size = pass_size({name: buffer[name] for name in buffer.columns}, PART)
        for start, stop, count in parts(network, len(buffer), size, processes):
            rows = {name: column.to(device) for name, column in buffer.part(start, stop).items()}
            weight = count / len(buffer)
            with objective.cast(device):
                value = objective.value(objective.output(network, objective.plain_inputs(rows), rows), rows, 0.0)
            # The gradients of shards are means over processes, so that a process must weigh its own before.
            scale = torch.full((), weight, device=device) if sharded else None
            batch_gradients = gradients.differentiate(value, list(parameters.values()), scale)
            for (name, parameter), gradient in zip(parameters.items(), batch_gradients, strict=True):
                if gradient is not None:
                    now = shard(parameter)
                    product = ((now - before[name].to(now)) * gradient).sum().double()
                    totals[name] = totals.get(name, 0.0) + (shard_count(parameter) if sharded else weight) * product
    totals = {name: processes.mean(total) for name, total in totals.items()}
    known = {group: [totals[name] for name in names if name in totals] for group, names in groups.items()}
    return {group: float(torch.stack(parts).sum()) if parts else None for group, parts in known.items()}


def displacement(network: nn.Module, before: Mapping[str, Tensor], processes: Processes = ALONE) -> float:
    """Return how far the parameters that take gradients have moved: the root of their mean squared displacement."""
    reshard(network)
    pairs = [
        (shard(value), before[name])
        for name, value in network.named_parameters()
        if value.requires_grad and name in before and before[name].shape == shard(value).shape
    ]
    squares = sum(float((now - then.to(now)).square().sum()) for now, then in pairs)
    every = processes.gather((squares, sum(then.numel() for _, then in pairs)))
    return math.sqrt(sum(part[0] for part in every) / max(1, sum(part[1] for part in every)))


def highest(scores: Mapping[str, float | None]) -> tuple[str, ...]:
    """Return the groups with the highest scores, which make up nine tenths of all positive scores.

        >>> highest({"stem": 0.05, "block1": -0.3, "norm.affine": 0.4, "norm.stats": None, "head": 0.6})
        ('norm.affine', 'norm.stats', 'head')

    The statistics of normalisation layers come along with their weights.
    """
    positive = {group: score for group, score in scores.items() if score is not None and score > 0}
    total, taken = 0.0, set()
    for group in sorted(positive, key=lambda name: -positive[name]):
        if total >= COVER * sum(positive.values()):
            break
        total += positive[group]
        taken |= {group, group.replace(".affine", ".stats")}
    return tuple(group for group in scores if group in taken)
