"""Importing this makes torchvision importable beside a torch for the CPU, for which it has no build.

Avalanche imports it. Two of its operators are declared for it to find; nothing in the tests calls them. Where
torchvision is whole, nothing is declared.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
