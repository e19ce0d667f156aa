"""The networks of the paper. Besides ``forward`` each has ``features(x)``, which returns the last layer's input."""

from forgetless.networks.mlp import MLP, deep_mlp, mlp
from forgetless.networks.resnet import ResNet, resnet18, resnet18_imagenet
from forgetless.networks.vgg import VGG11, vgg11

__all__ = ["MLP", "VGG11", "ResNet", "deep_mlp", "mlp", "resnet18", "resnet18_imagenet", "vgg11"]
