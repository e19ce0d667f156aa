"""VGG-11 (Simonyan & Zisserman 2014) for small images, without batch norm.

The paper states three fully connected layers and their shares of the parameters (0.32 % and 1.69 %). We found no layout
with these shares, so ours is 512-512-classes without dropout: 9,750,922 parameters with 10 classes and 3 channels.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class VGG11(nn.Module):
    """``conv1``, ``block2`` … ``block5``, ``fc1`` … ``fc3``. A 2×2 max-pool follows ``conv1`` and ends every block."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1)
        self.block2 = _convolutions(64, 128)
        self.block3 = _convolutions(128, 256, 256)
        self.block4 = _convolutions(256, 512, 512)
        self.block5 = _convolutions(512, 512, 512)
        self.fc1 = nn.Linear(512, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, classes)
        for module in self.modules():  # PyTorch's default weights lose the signal in eleven layers
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the last layer."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = self.block5(self.block4(self.block3(self.block2(x))))
        x = F.adaptive_max_pool2d(x, 1).flatten(1)  # (batch, 512) for images larger than 32×32 too
        return F.relu(self.fc2(F.relu(self.fc1(x))))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc3(self.features(x))
        return logits


def _convolutions(channels: int, *widths: int) -> nn.Sequential:
    """Return 3×3 convolutions with ReLU and a max-pool at the end."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True))  # 28×28 images need rounding up


def vgg11(classes: int, channels: int = 3) -> VGG11:
    """Return a VGG-11 for small images (28×28 to 64×64)."""
    return VGG11(classes, channels)
