"""Decide which examples a buffer holds, and in which slots: pure functions on tensors.

A whole batch is placed at once, with fixed shapes and without a GPU-to-CPU sync.
"""

import torch
from torch import Tensor

EMPTY = 2**63 - 1  # the key of an empty slot, above that of every example


def reservoir_slots(numbers: Tensor, seen: int | Tensor, capacity: int) -> Tensor:
    """Return the slot of each example of a batch, ``capacity`` if it is rejected.

    This is Algorithm 3 (reservoir sampling, Vitter 1985). Example S, counted from 0 over the whole stream, goes to slot
    S while S < capacity, else to slot ``number % (S + 1)`` if that is below the capacity. One example at a time, the
    later of two examples with one slot overwrites the earlier. Here the earlier is rejected, which leaves the same
    buffer. ``numbers`` are random integers, one per example; ``seen`` counts the examples before this batch.
    """
    order = torch.arange(len(numbers), device=numbers.device)
    count = order + seen  # (batch,)
    slots = torch.where(count < capacity, count, numbers % (count + 1)).clamp(max=capacity)
    last = torch.full((capacity + 1,), -1, device=numbers.device).scatter_reduce(0, slots, order, "amax")
    return torch.where(last[slots] == order, slots, capacity)


def host_reservoir_slots(numbers: list[int], seen: int, capacity: int) -> dict[int, int]:
    """Return ``reservoir_slots`` as {slot: example}, for a buffer on the CPU, in a fraction of the time."""
    taken: dict[int, int] = {}
    for example, number in enumerate(numbers):
        count = seen + example
        slot = count if count < capacity else number % (count + 1)
        if slot < capacity:
            taken[slot] = example
    return taken


def balanced_slots(labels: Tensor, keys: Tensor, new_labels: Tensor, new_keys: Tensor, unused: Tensor) -> Tensor:
    """Return the slot of each new example in a memory balanced over classes, the capacity if it is rejected.

    Every example has a random key. The memory holds the examples with the lowest rank by key within their class, ties
    by key. The classes get shares as equal as possible, each a uniform sample of the class's examples so far. (GDumb's
    greedy memory prefers the first examples of a class.) ``unused`` marks the empty slots.
    """
    capacity = len(labels)
    size = capacity + len(new_labels)
    label = torch.cat([labels, new_labels])
    key = torch.cat([keys, new_keys])
    empty = torch.cat([unused, torch.zeros_like(new_labels, dtype=torch.bool)])
    position = torch.arange(size, device=label.device)

    by_key = key.argsort(stable=True)
    grouped = by_key[label[by_key].argsort(stable=True)]  # by class, and by key within it
    grouped = grouped[empty[grouped].to(torch.uint8).argsort(stable=True)]  # unused slots last: they take no rank
    starts = torch.ones_like(position, dtype=torch.bool)
    starts[1:] = label[grouped][1:] != label[grouped][:-1]
    first = torch.where(starts, position, 0).cummax(0).values
    rank = torch.empty_like(position).scatter_(0, grouped, position - first)

    best = by_key[rank[by_key].argsort(stable=True)]  # by rank, and by key within it
    best = best[empty[best].to(torch.uint8).argsort(stable=True)]
    stays = torch.zeros_like(empty).scatter_(0, best[:capacity], True) & ~empty
    return _free_slots(stays, capacity)


def distinct_slots(keys: Tensor, strata: Tensor, new_keys: Tensor, new_strata: Tensor) -> Tensor:
    """Return the slot of each new example in a memory of distinct examples, the capacity if it is rejected.

    The key of an example is a hash of its content, so examples with equal keys are repeats and only the first of them
    counts. The memory holds the examples with the lowest rank by key within their stratum, ties by key. The strata get
    shares as equal as possible. An empty slot, and an example to reject, has the key ``EMPTY``.
    """
    capacity = len(keys)
    size = capacity + len(new_keys)
    key, by_key = torch.cat([keys, new_keys]).sort(stable=True)  # a held example comes before its repeats
    absent = key == EMPTY
    absent[1:] |= key[1:] == key[:-1]
    stratum = torch.cat([strata, new_strata])[by_key].masked_fill(absent, EMPTY)

    stratum, grouped = stratum.sort(stable=True)  # by stratum, and by key within it
    position = torch.arange(size, device=keys.device)
    starts = torch.ones_like(absent)
    starts[1:] = stratum[1:] != stratum[:-1]
    first = torch.where(starts, position, 0).cummax(0).values
    rank = torch.empty_like(position).scatter_(0, grouped, position - first).masked_fill(absent, size)

    best = rank.sort(stable=True).indices[:capacity]  # by rank, and by key within it
    stays = torch.zeros_like(absent).scatter_(0, by_key[best], ~absent[best])
    return _free_slots(stays, capacity)


def _free_slots(stays: Tensor, capacity: int) -> Tensor:
    """Return the slots of the new examples that stay, given which of the held and the new examples do."""
    free = stays[:capacity].to(torch.uint8).argsort(stable=True)  # slots to overwrite come first
    enters = stays[capacity:]
    return torch.where(enters, free[(enters.cumsum(0) - 1).clamp(min=0)], capacity)


def herd(features: Tensor, count: int) -> Tensor:
    """Return ``count`` rows whose running mean stays nearest the mean: iCaRL's herding (Rebuffi et al. 2017, Alg. 4).

    p_k = argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖, each row at most once.
    """
    mean = features.mean(0)
    total = torch.zeros_like(mean)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    picks = []
    for k in range(1, count + 1):
        distance = (mean - (features + total) / k).norm(dim=1)
        pick = distance.masked_fill(taken, torch.inf).argmin()
        picks.append(pick)
        total = total + features[pick]
        taken = taken.scatter(0, pick.reshape(1), True)
    return torch.stack(picks)
