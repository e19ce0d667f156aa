"""How far training has moved the weights of a network since a repair."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

import torch
from torch import Tensor, nn

from forgetless.compute.shards import shard
from forgetless.repair.groups import float_tensors
from forgetless.repair.restoring import all_tensors, copies


@final
class Anchor:
    """The weights after a repair, or how far training moved them from there; one copy, in host memory.

    Repairs undo what training moves, so a movement over several repairs says little about training. ``settle`` before a
    repair keeps the movement up to it.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.held: dict[str, Tensor] = {}
        self.settled = False  # whether ``held`` is a movement

    def take(self, names: Collection[str]) -> None:
        """Measure from the present weights of these parameters."""
        self.held, self.settled = {}, False  # now, so that there are never two copies
        tensors, tracked = float_tensors(self._network), set(names)
        parameters = {name: tensors[name] for name, _ in self._network.named_parameters() if name in tracked}
        self.held = copies(parameters, host=True)

    def settle(self) -> None:
        """Keep the movement up to now."""
        if not self.settled:
            self._reflect()

    def before(self) -> Mapping[str, Tensor]:
        """Return the weights whose distance to the present ones is the movement."""
        if self.settled:
            self._reflect()
        return self.held

    def load(self, held: Mapping[str, Tensor], *, settled: bool) -> None:
        """Take over the values of another object; raise ``ValueError`` if they are of another network."""
        saved = {name: tuple(tensor.shape) for name, tensor in held.items()}
        present = {name: tuple(shard(tensor).shape) for name, tensor in float_tensors(self._network).items()}
        if saved and not saved.items() & present.items():  # a run of the benchmark has no anchor
            raise ValueError("the state was saved from another network: none of its parameters has this name and shape")
        self.held, self.settled = {name: tensor.cpu() for name, tensor in held.items()}, settled

    @torch.no_grad()
    def _reflect(self) -> None:
        """Replace weights by their distance to the present ones, or the other way round: both are a subtraction."""
        tensors = all_tensors(self._network)
        for name, tensor in list(self.held.items()):
            if name in tensors and tensors[name].shape == tensor.shape:  # a head may have grown
                present = copies({name: tensors[name]}, host=True)  # new memory, since a state may hold the tensor
                self.held[name] = present[name].sub_(tensor)
        self.settled = not self.settled
