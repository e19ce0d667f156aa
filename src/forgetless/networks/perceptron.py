"""The multi-layer perceptron of the paper: 784-100-100-10 with ReLU, 89,610 parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers ``fc1`` … ``fcN`` with ReLU between them; any input is flattened first."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.depth = len(sizes) - 1
        for i in range(self.depth):
            self.add_module(f"fc{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees."""
        x = x.flatten(1)  # (batch, inputs)
        for i in range(1, self.depth):
            x = self.get_submodule(f"fc{i}")(x).relu()
        return x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.get_submodule(f"fc{self.depth}")(self.features(x))
        return logits


def mlp(classes: int, inputs: int = 784, hidden: Sequence[int] = (100, 100)) -> MLP:
    """An MLP with PyTorch's default initialisation; groups ``fc1``, ``fc2``, … one a layer."""
    return MLP((inputs, *hidden, classes))
