"""ResNet-18 (He et al. 2016) in the two forms that the paper uses.

The form for small images has a 3×3 stem with stride 1 and no pooling after it: 11,173,962 parameters with 10 classes.
The ImageNet form has a 7×7 stem with stride 2 and a 3×3 max-pool with stride 2. Both start from PyTorch's default
initial weights, not from the normal distribution of the paper by He et al.
"""

from torch import Tensor, nn

from forgetless.networks.norm import batch_norm, count_batches


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut around them: a 1×1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor, passes: int = 1) -> Tensor:
        y = batch_norm(self.bn1, self.conv1(x), relu=True, passes=passes)
        if isinstance(self.shortcut, nn.Sequential) and isinstance(self.shortcut[-1], nn.BatchNorm2d):
            x = batch_norm(self.shortcut[-1], self.shortcut[0](x), passes=passes)
        else:  # the identity, or a norm layer that the user chose
            x = self.shortcut(x)
        return batch_norm(self.bn2, self.conv2(y), relu=True, residual=x, passes=passes)


class ResNet(nn.Module):
    """``conv1``, ``bn1``, ``block1`` … ``block4``, ``fc``. Each block has two basic blocks; widths are w, 2w, 4w, 8w.

    With ``passes`` = p the batch is p batches in a row, each with its own batch statistics.
    """

    def __init__(self, classes: int, channels: int, width: int, *, imagenet: bool) -> None:
        super().__init__()
        if imagenet:
            self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
            self.pool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        self.block1 = _stage(width, width, 1)
        self.block2 = _stage(width, 2 * width, 2)
        self.block3 = _stage(2 * width, 4 * width, 2)
        self.block4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)

    def features(self, x: Tensor, passes: int = 1) -> Tensor:
        """Return the input of the last layer: the spatial mean of ``block4``."""
        count_batches((module for module in self.modules() if isinstance(module, nn.BatchNorm2d)), x, passes)
        x = self.pool(batch_norm(self.bn1, self.conv1(x), relu=True, passes=passes))  # (batch, width, height, width)
        for stage in (self.block1, self.block2, self.block3, self.block4):
            for block in stage:
                x = block(x, passes)
        return x.mean((2, 3))  # (batch, 8 × width)

    def forward(self, x: Tensor, passes: int = 1) -> Tensor:
        logits: Tensor = self.fc(self.features(x, passes))
        return logits


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    """Return two basic blocks, the first with the stride."""
    return nn.Sequential(BasicBlock(channels, width, stride), BasicBlock(width, width, 1))


def resnet18(classes: int, channels: int = 3, width: int = 64) -> ResNet:
    """Return a ResNet-18 for small images (28×28 to 64×64); ``width`` is the number of channels of its stem."""
    return ResNet(classes, channels, width, imagenet=False)


def resnet18_imagenet(classes: int, channels: int = 3, width: int = 64) -> ResNet:
    """Return a ResNet-18 for images of about 224×224; ``width`` is the number of channels of its stem."""
    return ResNet(classes, channels, width, imagenet=True)
