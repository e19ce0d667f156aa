"""The pairs of network and optimiser of oracle.py, each with an old and a new task.

The images are MNIST's and those of the first file of CIFAR-10, from the folder in the environment variable
FORGETLESS_DATA. The text is Python's standard library: its docstrings are one domain and its code is the other.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.data.readers import mnist
from forgetless.data.readers.files import data_folder, existing
from forgetless.networks import mlp, resnet18

TESTED = 1000  # examples of a task that are held out for its test set
CIFAR_ROW = 1 + 3 * 32 * 32  # bytes: the label and the pixels
CONTEXT, WORDS, VOCABULARY = 128, 48, 4096  # bytes per sequence; words per passage; the ids that words are hashed to
CANVAS = 48  # pixels per side of an image to segment
OTHER_FOLDERS = ("test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data")
PACKAGES = (
    "_pydecimal", "asyncio", "difflib", "doctest", "email", "http", "inspect", "logging", "typing", "unittest",
)  # fmt: skip


class Examples(NamedTuple):
    """Inputs and targets, one row each."""

    x: Tensor
    y: Tensor

    def rows(self, index: Tensor | slice) -> Examples:
        """Return some of the examples."""
        return Examples(self.x[index], self.y[index])

    def to(self, device: str, stride: int = 1) -> Examples:
        """Return the examples on a device; images with every n-th pixel."""
        x, y = (t[..., ::stride, ::stride] if t.ndim > 2 else t for t in self)
        return Examples(x.to(device), y.to(device))


class Task(NamedTuple):
    """The training and test examples of a task."""

    train: Examples
    test: Examples


class Tasks(NamedTuple):
    """The task that is forgotten, the task that replaces it, and a task to pretrain on, if any."""

    old: Task
    new: Task
    pretraining: Task | None = None


@dataclass(frozen=True)
class Pair:
    """A network, an optimiser, and the tasks; ``network`` takes the width of its layers."""

    network: Callable[[int], nn.Module]
    width: int
    tiny_width: int
    tasks: Callable[[torch.Generator], Tasks]
    optimizer: str
    lr: float
    steps: tuple[int, int]  # on the old task and on the new one
    pretraining_steps: int = 0
    cuda: bool = True  # False: a CPU is faster
    tiny_stride: int = 1  # of the pixels of an image in a tiny study


def split(x: Tensor, y: Tensor, generator: torch.Generator) -> Task:
    """Return a random training and test set."""
    order = torch.randperm(len(x), generator=generator)
    tested = min(TESTED, len(x) // 5)
    examples = Examples(x, y)
    return Task(examples.rows(order[tested:]), examples.rows(order[:tested]))


def by_class(x: Tensor, y: Tensor, generator: torch.Generator) -> Tasks:
    """Return five random classes as the old task and the other five as the new one."""
    old = torch.isin(y, torch.randperm(10, generator=generator)[:5])
    return Tasks(split(x[old], y[old], generator), split(x[~old], y[~old], generator))


# Images


@cache
def digits() -> Examples:
    """Return 20,000 training images of MNIST with values between 0 and 1."""
    images = mnist.read(data_folder())[0]
    return Examples(images.x[:20_000].float() / 255, images.y[:20_000])


@cache
def photographs() -> Examples:
    """Return the images of the first of CIFAR-10's five training files, standardised."""
    path = existing(data_folder() / "cifar-10-batches-bin" / "data_batch_1.bin", "cifar10")
    rows = torch.from_numpy(numpy.fromfile(path, numpy.uint8).reshape(-1, CIFAR_ROW))
    x = rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    return Examples((x - x.mean()) / x.std(), rows[:, 0].long())


def digit_classes(generator: torch.Generator) -> Tasks:
    return by_class(*digits(), generator)


def digit_rotations(generator: torch.Generator) -> Tasks:
    """Return upright digits as the old task and digits turned by 90° as the new one."""
    x, y = digits()
    return Tasks(split(x, y, generator), split(x.rot90(1, (2, 3)), y, generator))


def photograph_classes(generator: torch.Generator) -> Tasks:
    return by_class(*photographs(), generator)


def photograph_negatives(generator: torch.Generator) -> Tasks:
    """Return photographs as the old task and their negatives, turned by 90°, as the new one."""
    x, y = photographs()
    return Tasks(split(x, y, generator), split(-x.rot90(1, (2, 3)), y, generator))


def scenes(generator: torch.Generator) -> Tasks:
    """Return images with three digits each, labelled per pixel: digits below 5 in the old task, others in the new one.

    The background is class 10.
    """
    x, y = digits()
    tasks = []
    for wanted in (y < 5, y >= 5):
        images, labels = x[wanted], y[wanted]
        count = 2500
        canvas = torch.zeros(count, 1, CANVAS, CANVAS)
        target = torch.full((count, CANVAS, CANVAS), 10)
        picks = torch.randint(len(images), (count, 3), generator=generator)
        corners = torch.randint(CANVAS - 28, (count, 3, 2), generator=generator)
        for scene in range(count):
            for pick, (top, left) in zip(picks[scene].tolist(), corners[scene].tolist(), strict=True):
                place = (slice(top, top + 28), slice(left, left + 28))
                ink = images[pick, 0]
                canvas[scene, 0][place] = torch.maximum(canvas[scene, 0][place], ink)
                target[scene][place] = torch.where(ink > 0.3, labels[pick], target[scene][place])
        tasks.append(split(canvas, target, generator))
    return Tasks(*tasks)


# Text


@cache
def library() -> dict[str, tuple[str, str]]:
    """Return the docstrings and the code without them of every file of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = {}
    for file in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        if file.parent.name in OTHER_FOLDERS:
            continue
        source = file.read_text(encoding="utf-8", errors="replace")
        lines: list[str | None] = list(source.splitlines())
        docstrings = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and (end := node.body[0].end_lineno):
                    docstrings.append(text)
                    lines[node.body[0].lineno - 1 : end] = [None] * (end - node.body[0].lineno + 1)
        code = "\n".join(line for line in lines if line is not None and not line.lstrip().startswith("#"))
        texts[str(file.relative_to(folder))] = ("\n\n".join(docstrings), code)
    return texts


def sequences(text: str, generator: torch.Generator) -> Task:
    """Return up to 6,000 sequences of bytes; the target of a byte is the next one."""
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    rows = data[: len(data) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    rows = rows[torch.randperm(len(rows), generator=generator)[:6000]]
    return split(rows[:, :-1], rows[:, 1:], generator)


def docstrings_then_code(generator: torch.Generator) -> Tasks:
    """Return the library's docstrings as the old task and its code as the new one.

    The tasks take every second file. The pretraining takes the others, half of it docstrings and half of it code.
    """
    files = list(library().values())
    old, new = ("\n\n".join(texts) for texts in zip(*files[::2], strict=True))
    docstrings, code = ("\n\n".join(texts) for texts in zip(*files[1::2], strict=True))
    mixture = docstrings + code[: len(docstrings)]
    return Tasks(*(sequences(text, generator) for text in (old, new, mixture)))


def packages_by_passage(generator: torch.Generator) -> Tasks:
    """Return passages of ten packages to tell apart: by their docstrings in the old task, by code in the new one."""
    tasks = []
    for kind in (0, 1):
        rows, labels = [], []
        for label, package in enumerate(PACKAGES):
            files = [texts for file, texts in library().items() if re.match(rf"{package}[/.]", file)]
            tokens = [zlib.crc32(word.encode()) % VOCABULARY for word in words("\n".join(text[kind] for text in files))]
            count = min(600, len(tokens) // WORDS)
            rows += [tokens[WORDS * index : WORDS * (index + 1)] for index in range(count)]
            labels += [label] * count
        tasks.append(split(torch.tensor(rows), torch.tensor(labels), generator))
    return Tasks(*tasks)


def words(text: str) -> Iterator[str]:
    """Yield the words of a text, and its other signs one by one."""
    return (match.group().lower() for match in re.finditer(r"[A-Za-z]+|[^\sA-Za-z]", text))


# Networks


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.heads, self.causal = 4, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.projection(x.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A layer of a transformer, with normalisation before attention and before the perceptron."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, causal)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Embed the input, add positions, apply the layers, and classify each position or their mean."""

    def __init__(
        self, embedding: nn.Module, length: int, width: int, depth: int, classes: int, causal: bool = False
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, causal) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: Tensor = self.head(x).transpose(1, 2) if self.causal else self.head(x.mean(1))
        return logits  # (batch, classes), with a position per column where it is causal


class Patches(nn.Conv2d):
    """Embed the patches of an image of 32×32 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__(3, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(2).transpose(1, 2)


class Adapted(nn.Module):
    """A linear layer with a LoRA adapter of rank 8 (Hu et al. 2022)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(8, layer.in_features) / layer.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * F.linear(F.linear(x, self.lora_a), self.lora_b)  # type: ignore[no-any-return]


def add_adapters(network: Transformer) -> None:
    """Freeze a network and add an adapter to each linear layer of its blocks."""
    network.requires_grad_(False)
    for block in network.blocks:
        for parent in [module for module in block.modules() if not isinstance(module, Adapted)]:
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, Adapted(child))


class DoubleConvolution(nn.Sequential):
    """Two 3×3 convolutions with batch norm and ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        layers = [
            layer
            for inputs, outputs in pairwise((channels, width, width))
            for layer in (nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        ]
        super().__init__(*layers)


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) with three resolutions."""

    def __init__(self, width: int, classes: int = 11) -> None:
        super().__init__()
        self.down1 = DoubleConvolution(1, width)
        self.down2 = DoubleConvolution(width, 2 * width)
        self.middle = DoubleConvolution(2 * width, 4 * width)
        self.up2 = DoubleConvolution(6 * width, 2 * width)
        self.up1 = DoubleConvolution(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down1(x)
        low = self.down2(F.max_pool2d(high, 2))
        x = F.interpolate(self.middle(F.max_pool2d(low, 2)), scale_factor=2.0)
        x = F.interpolate(self.up2(torch.cat([x, low], 1)), scale_factor=2.0)
        logits: Tensor = self.head(self.up1(torch.cat([x, high], 1)))
        return logits  # (batch, classes, height, width)


def perceptron(width: int) -> nn.Module:
    return mlp(10, hidden=(width,) * 5)


def resnet(width: int) -> nn.Module:
    return resnet18(10, width=width)


def vit(width: int) -> nn.Module:
    return Transformer(Patches(width), 64, width, depth=6, classes=10)


def bert(width: int) -> nn.Module:
    return Transformer(nn.Embedding(VOCABULARY, width), WORDS, width, depth=6, classes=len(PACKAGES))


def gpt(width: int) -> nn.Module:
    return Transformer(nn.Embedding(256, width), CONTEXT, width, depth=6, classes=256, causal=True)


PAIRS = {
    "MLP, SGD": Pair(perceptron, 200, 50, digit_classes, "SGD", 0.1, (600, 200), cuda=False),
    "MLP, AdamW": Pair(perceptron, 200, 50, digit_rotations, "AdamW", 1e-3, (600, 200), cuda=False),
    "ResNet-18, SGD": Pair(resnet, 64, 4, photograph_classes, "SGD", 0.05, (800, 200), tiny_stride=4),
    "ResNet-18, AdamW": Pair(resnet, 64, 4, photograph_negatives, "AdamW", 1e-3, (800, 200), tiny_stride=4),
    "U-Net, SGD": Pair(UNet, 32, 4, scenes, "SGD", 0.1, (600, 200), tiny_stride=4),
    "ViT, AdamW": Pair(vit, 128, 32, photograph_classes, "AdamW", 5e-4, (1000, 200)),
    "BERT, AdamW": Pair(bert, 128, 32, packages_by_passage, "AdamW", 5e-4, (600, 200)),
    "GPT, AdamW": Pair(gpt, 128, 32, docstrings_then_code, "AdamW", 1e-3, (1000, 300)),
    "GPT with LoRA, AdamW": Pair(gpt, 128, 32, docstrings_then_code, "AdamW", 2e-3, (300, 300), 1000),
}
