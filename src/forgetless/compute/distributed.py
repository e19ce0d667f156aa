"""Average values over the processes that train one network together (``DistributedDataParallel``, ``fully_shard``).

Without ``torch.distributed``, or in a group of one, there is one process and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@final
class Processes:
    """A group of processes, seen from one of them.

    All processes must call ``mean``, ``mean_over_examples``, ``weight`` and ``gather`` in the same order. If it is
    ``alone``, this process is a group of its own, whatever others there are.
    """

    def __init__(self, group: ProcessGroup | None = None, *, alone: bool = False) -> None:
        initialized = not alone and dist.is_available() and dist.is_initialized()
        self.group = group
        self.count = dist.get_world_size(group) if initialized else 1
        self.rank = dist.get_rank(group) if initialized else 0
        if self.rank < 0:
            raise ValueError("process_group does not contain this process; pass a group that does")

    def share(self, total: int, name: str) -> int:
        """Return how many of ``total`` things this process takes; raise an error if some process gets none."""
        if total < self.count:
            raise ValueError(f"{name} is {total}; with {self.count} processes it must be {self.count} or more")
        return total // self.count + (self.rank < total % self.count)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over processes, with the same bits in each."""
        return values if self.count == 1 else self._sum(values) / self.count

    def mean_over_examples(self, values: Sequence[Tensor], examples: int | Tensor) -> list[Tensor]:
        """Return the means over the examples of all processes, from those over this process's ``examples``.

        All values are exchanged at once. A number of examples on a GPU stays there: no GPU-to-CPU sync.
        """
        if self.count == 1:
            return list(values)
        dtype = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        count = torch.as_tensor(examples, dtype=dtype, device=values[0].device)
        means = torch.cat([value.detach().flatten().to(dtype) for value in values])
        sums = torch.where(count > 0, means * count, 0)  # a mean over no examples is NaN
        total = self._sum(torch.cat([count[None], sums]))
        parts = (total[1:] / total[0]).split([value.numel() for value in values])
        return [part.view_as(value).to(value.dtype) for part, value in zip(parts, values, strict=True)]

    def weight(self, examples: int | Tensor, device: torch.device) -> Tensor:
        """Return the number of this process's ``examples`` relative to the mean over processes. No GPU-to-CPU sync."""
        count = torch.as_tensor(examples, dtype=torch.float32, device=device)
        return torch.ones_like(count) if self.count == 1 else count / self.mean(count)

    def gather(self, value: Any) -> list[Any]:
        """Return the plain data of every process, by rank, with its tensors on the CPU."""
        value = tree_map_only(Tensor, Tensor.cpu, value)
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values

    def _sum(self, values: Tensor) -> Tensor:
        total = values.detach().clone()
        if total.device.type == "cpu" and dist.get_backend(self.group) == "nccl":  # NCCL needs tensors on a GPU
            total = total.cuda()
        dist.all_reduce(total, group=self.group)
        return total.to(values.device)


ALONE = Processes(alone=True)
