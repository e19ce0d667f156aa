"""Processes that train one network together, as under ``DistributedDataParallel``: shares, and what they agree on.

Without ``torch.distributed``, or in a group of one, there is one process, which has all and agrees with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@final
class Processes:
    """A group of processes, seen from one of them. Every method but ``share`` is called by all of them in step."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.group = group
        self.count = dist.get_world_size(group) if together else 1
        self.rank = dist.get_rank(group) if together else 0
        if self.rank < 0:
            raise ValueError("process_group does not hold this process; give a group that does")

    def share(self, total: int, name: str) -> int:
        """The part of ``total`` things that falls to this process; every process must have one."""
        if total < self.count:
            raise ValueError(f"{name} is {total}; with {self.count} processes it must be {self.count} or more")
        return total // self.count + (self.rank < total % self.count)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes, the same bits in all of them."""
        return values if self.count == 1 else self._sum(values) / self.count

    def mean_over_examples(self, values: Sequence[Tensor], examples: int | Tensor) -> list[Tensor]:
        """Means over this process's ``examples`` to means over those of all processes; one exchange for all values.

        A number on a device stays there: the host does not wait for it.
        """
        if self.count == 1:
            return list(values)
        dtype = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        count = torch.as_tensor(examples, dtype=dtype, device=values[0].device)
        means = torch.cat([value.detach().flatten().to(dtype) for value in values])
        sums = torch.where(count > 0, means * count, 0)  # means over nothing are NaN
        total = self._sum(torch.cat([count[None], sums]))
        parts = (total[1:] / total[0]).split([value.numel() for value in values])
        return [part.view_as(value).to(value.dtype) for part, value in zip(parts, values, strict=True)]

    def gathered(self, value: Any) -> list[Any]:
        """Plain data of every process, by rank, in all of them; its tensors come on the CPU."""
        value = _on_cpu(value)
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.group)
        return found

    def _sum(self, values: Tensor) -> Tensor:
        total = values.detach().clone()
        if total.device.type == "cpu" and dist.get_backend(self.group) == "nccl":  # which has GPUs only
            total = total.cuda()
        dist.all_reduce(total, group=self.group)
        return total.to(values.device)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(part) for name, part in value.items()}
    return [_on_cpu(part) for part in value] if isinstance(value, list | tuple) else value
