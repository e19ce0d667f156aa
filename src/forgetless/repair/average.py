"""An average of the weights after the latest repairs. The repair at the end may start from it.

Training and short repairs move the weights back and forth, so their average often has a lower loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import final

import torch
from torch import Tensor, nn

from forgetless.compute.shards import is_sharded
from forgetless.repair.groups import float_tensors
from forgetless.repair.restoring import Restorer, copies, copy_all

NEWEST = 0.05  # the share of the newest weights in the average


@final
class Average:
    """A running average of the tensors that repairs move: one copy of them. Sharded networks have none."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._held: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Forget all weights."""
        self._held = {}

    @torch.no_grad()
    def add(self, names: Collection[str], *, host: bool) -> None:
        """Add the present tensors of these names. The average begins again if others were added before.

        With ``host`` it is in host memory.
        """
        if is_sharded(self._network):
            return
        if present := self._fitting(names):
            home = {name: tensor.to("cpu") if host else tensor for name, tensor in present.items()}
            self._held = {name: held.to(home[name].device) for name, held in self._held.items()}  # it may be loaded
            torch._foreach_lerp_(list(self._held.values()), list(home.values()), NEWEST)
            return
        self._held = {}  # now, so that there are never two copies
        tensors = float_tensors(self._network)
        self._held = copies({name: tensors[name] for name in names}, host=host)

    def install(self, names: Collection[str]) -> Callable[[], None] | None:
        """Write the average of these tensors into the network and return how to undo that; None if there is none."""
        if not (present := self._fitting(names)):
            return None
        before = Restorer(self._network, names)
        copy_all(present, self._held)
        return before.restore

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average of each tensor; empty if there is none."""
        return copies(self._held)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the average of another object."""
        self._held = copies(state)

    def _fitting(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return the present tensors; none unless the average is of these names and shapes."""
        tensors = float_tensors(self._network)
        shapes = {name: tensors[name].shape for name in names}
        fits = shapes == {name: tensor.shape for name, tensor in self._held.items()}
        return {name: tensors[name].detach() for name in names} if fits else {}
