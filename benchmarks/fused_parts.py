"""Compute the other parts of a step for all lanes in the ways that ``fused.py`` compares, and list the parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.data.augment import Preparation
from forgetless.networks import resnet18
from forgetless.networks.norm import batch_norm
from fused_convolutions import Convolution
from fused_problem import (
    STREAMS,
    Problem,
    Result,
    Variant,
    Work,
    channels_to_lanes,
    has_triton,
    lanes_to_channels,
    to_images,
    to_rows,
)
from speed import random_stream

CLASSES, RATE, MOMENTUM, EPSILON = 10, 0.5, 0.1, 1e-5
NORM_PROGRAMS = (512, 1024, 2048)  # among which the launches of all lanes choose


@dataclass(frozen=True)
class Norm(Problem):
    """Batch norm with the residual and the ReLU behind it, forward and backward, with its running statistics."""

    channels: int
    size: int
    relu: bool
    residual: bool

    part = "batch norm"

    @property
    def name(self) -> str:
        behind = " + residual" * self.residual + " + ReLU" * self.relu
        return f"batch norm{behind}, {self.channels} channels, {self.size}×{self.size}"

    def inputs(self, seed: int) -> SimpleNamespace:
        """Return images, a residual if there is one, the gradient of the output, weights and biases."""
        images = (self.batch, self.size, self.size, self.channels)
        x, residual, dy, weight, bias = self.random(seed, images, images, images, (self.channels,), (self.channels,))
        x, residual, dy = ((tensor + 0.1).to(self.dtype) for tensor in (x, residual, dy))
        return SimpleNamespace(x=x, residual=residual if self.residual else None, dy=dy, weight=weight, bias=bias)

    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return the result of the formulas in fp32."""
        inner = (1, 2, 3)
        x, dy = inputs.x.float(), inputs.dy.float()
        count = x[0].numel() // self.channels
        mean, variance = x.mean(inner, keepdim=True), x.var(inner, correction=0, keepdim=True)
        weight, bias = inputs.weight[:, None, None, None], inputs.bias[:, None, None, None]
        scaled = (x - mean) / (variance + EPSILON).sqrt()
        y = scaled * weight + bias
        if self.residual:
            y = y + inputs.residual.float()
        if self.relu:
            y, dy = y.relu(), dy * (y > 0)
        dbias, dweight = dy.sum(inner, keepdim=True), (dy * scaled).sum(inner, keepdim=True)
        dx = (dy - (dbias + scaled * dweight) / count) * weight / (variance + EPSILON).sqrt()
        running_mean, running_var = MOMENTUM * mean, 1 - MOMENTUM + MOMENTUM * variance * count / (count - 1)
        sums = [tensor.flatten(1) for tensor in (dweight, dbias, running_mean, running_var)]
        return (y, dx, *sums, *([dy] if self.residual else []))

    def variants(self) -> dict[str, Variant]:
        return {
            STREAMS: separate_norms, **({"triton": norms_in_one_launch} if has_triton(self.device) else {}),
            "all channels": norm_of_all_channels,
        }  # fmt: skip

    def compute(self, layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, dy: Tensor) -> Result:
        """Return the output and the gradients of forgetless's batch norm, and the running statistics."""
        y = batch_norm(layer, x, relu=self.relu, residual=residual)
        wanted = [x, layer.weight, layer.bias, *([] if residual is None else [residual])]
        dx, dweight, dbias, *dresidual = torch.autograd.grad(y, wanted, dy)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        return (y.detach(), dx, dweight, dbias, layer.running_mean, layer.running_var, *dresidual)


def norm_layer(weight: Tensor, bias: Tensor) -> nn.BatchNorm2d:
    """Return a layer with these weights and biases."""
    layer = nn.BatchNorm2d(len(weight), EPSILON, MOMENTUM, device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


def separate_norms(problem: Norm, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Normalise each lane by itself with forgetless's kernels (on a CPU, with PyTorch's)."""

    def lane(number: int) -> Callable[[], Result]:
        layer = norm_layer(inputs.weight[number], inputs.bias[number])
        x = to_images(inputs.x[number]).detach().requires_grad_()
        residual = to_images(inputs.residual[number]).detach().requires_grad_() if problem.residual else None
        dy = to_images(inputs.dy[number])

        def work() -> Result:
            return tuple(to_rows(t) if t.ndim == 4 else t for t in problem.compute(layer, x, residual, dy))

        return work

    return {"": [lane(number) for number in range(problem.lanes)]}


def norm_of_all_channels(problem: Norm, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Normalise the channels of all lanes as those of one layer, with the same kernels."""
    lanes = problem.lanes
    layer = norm_layer(inputs.weight.flatten(), inputs.bias.flatten())
    x, dy = lanes_to_channels(inputs.x).requires_grad_(), lanes_to_channels(inputs.dy)
    residual = lanes_to_channels(inputs.residual).requires_grad_() if problem.residual else None

    def work() -> Result:
        results = problem.compute(layer, x, residual, dy)
        return tuple(channels_to_lanes(t, lanes) if t.ndim == 4 else t.unflatten(0, (lanes, -1)) for t in results)

    return {"": [work]}


def norms_in_one_launch(problem: Norm, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Normalise all lanes with Triton kernels whose launches cover all lanes."""
    import fused_kernels as kernels

    running = (torch.zeros_like(inputs.weight), torch.ones_like(inputs.weight))

    def work(programs: int) -> Callable[[], Result]:
        own = (running[0].clone(), running[1].clone())

        def compute() -> Result:
            y, dx, dweight, dbias, *dresidual = kernels.normalise_and_back(
                inputs.x, inputs.residual, inputs.dy, inputs.weight, inputs.bias, own,
                relu=problem.relu, momentum=MOMENTUM, epsilon=EPSILON, programs=programs, tile=128,
            )  # fmt: skip
            return (y, dx, dweight, dbias, *own, *dresidual)

        return compute

    return {f"{programs} programs": [work(programs)] for programs in NORM_PROGRAMS}


@dataclass(frozen=True)
class Augmentation(Problem):
    """Random crops and flips of images in uint8, scaled and normalised."""

    size: int

    part = "augmentation"
    directions = ("forward",)

    @property
    def name(self) -> str:
        return f"{self.size}×{self.size}"

    def inputs(self, seed: int) -> SimpleNamespace:
        """Return images, and how they are prepared; generators are made by the variants."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.lanes, self.batch, 3, self.size, self.size)
        images = torch.randint(256, shape, generator=generator, dtype=torch.uint8).to(self.device)
        stream = random_stream(3, self.size, 4, 4, self.device)
        prepare = Preparation(stream, self.device, channels_last=self.device.type == "cuda")
        return SimpleNamespace(images=images, stream=stream, prepare=prepare, generators=[], seed=seed)

    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return the images, cut out one by one, for the random numbers that the variant draws first."""
        pad = inputs.stream.pad
        batches = list(inputs.images) if variant == STREAMS else [inputs.images.flatten(0, 1)]
        cut = []
        for number, batch in enumerate(batches):
            generator = torch.Generator(self.device).manual_seed(inputs.seed + number)
            offset = torch.randint(2 * pad + 1, (2, len(batch), 1), generator=generator, device=self.device)
            chance = torch.rand(len(batch), 1, 1, 1, generator=generator, device=self.device)
            tops, lefts = offset[:, :, 0].tolist()
            flips = (chance < 0.5).flatten().tolist()
            for image, top, left, flipped in zip(F.pad(batch, [pad] * 4), tops, lefts, flips, strict=True):
                crop = image[:, top : top + self.size, left : left + self.size]
                cut.append(crop.flip(2) if flipped else crop)
        mean, std = (
            torch.tensor(v, device=self.device)[:, None, None] for v in (inputs.stream.mean, inputs.stream.std)
        )
        return (((torch.stack(cut) / 255 - mean) / std).view(inputs.images.shape),)

    def variants(self) -> dict[str, Variant]:
        return {STREAMS: separate_augmentations, "one batch": augmentation_of_all}


def separate_augmentations(problem: Augmentation, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Augment each lane with random numbers of its own."""

    def lane(number: int) -> Callable[[], Result]:
        generator = torch.Generator(problem.device).manual_seed(inputs.seed + number)
        inputs.generators.append(generator)
        return lambda: (inputs.prepare.augmented(inputs.images[number], generator),)

    return {"": [lane(number) for number in range(problem.lanes)]}


def augmentation_of_all(problem: Augmentation, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Augment the images of all lanes as one batch, with one generator."""
    generator = torch.Generator(problem.device).manual_seed(inputs.seed)
    inputs.generators.append(generator)
    images = inputs.images.flatten(0, 1)
    return {"": [lambda: (inputs.prepare.augmented(images, generator).unflatten(0, (problem.lanes, -1)),)]}


@dataclass(frozen=True)
class CrossEntropy(Problem):
    """The loss of a batch and the gradient of its logits, in fp32."""

    part = "cross-entropy"

    @property
    def name(self) -> str:
        return f"{CLASSES} classes"

    def inputs(self, seed: int) -> SimpleNamespace:
        """Return logits and labels."""
        (logits,) = self.random(seed, (self.batch, CLASSES))
        labels = logits.flip(-1).argmax(-1)
        return SimpleNamespace(logits=logits, labels=labels)

    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return −log softmax at the labels, averaged, and (softmax − labels) / batch."""
        wanted = F.one_hot(inputs.labels, CLASSES)
        log_softmax = inputs.logits - inputs.logits.exp().sum(-1, keepdim=True).log()
        return -(log_softmax * wanted).sum(-1).mean(1), (log_softmax.exp() - wanted) / self.batch

    def variants(self) -> dict[str, Variant]:
        return {STREAMS: separate_losses, "one batch": losses_of_all}


def separate_losses(problem: CrossEntropy, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Compute the loss of each lane by itself."""

    def lane(logits: Tensor, labels: Tensor) -> Callable[[], Result]:
        def work() -> Result:
            loss = F.cross_entropy(logits, labels)
            return loss.detach(), *torch.autograd.grad(loss, logits)

        return work

    return {"": [lane(x.detach().requires_grad_(), y) for x, y in zip(inputs.logits, inputs.labels, strict=True)]}


def losses_of_all(problem: CrossEntropy, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Compute the losses of the examples of all lanes as one batch, and average them by lane."""
    logits, labels = inputs.logits.detach().requires_grad_(), inputs.labels.flatten()

    def work() -> Result:
        losses = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none").view(problem.lanes, -1).mean(1)
        return losses.detach(), *torch.autograd.grad(losses.sum(), logits)

    return {"": [work]}


@dataclass(frozen=True)
class Update(Problem):
    """A step of SGD with its casts: gradients of matrices and kernels to fp32, and updated weights to bf16."""

    shapes: tuple[tuple[int, ...], ...]

    part = "update"
    directions = ("forward",)

    @property
    def name(self) -> str:
        return f"{len(self.shapes)} tensors"

    def inputs(self, seed: int) -> SimpleNamespace:
        """Return weights, and gradients in the precision of the backward pass."""
        weights, gradients = self.random(seed, *self.shapes), self.random(seed + 1, *self.shapes)
        return SimpleNamespace(
            weights=weights, gradients=[g.to(self.dtype) if self.is_cast(g) else g for g in gradients]
        )

    @staticmethod
    def is_cast(stacked: Tensor) -> bool:
        """Return whether this tensor, with the lanes first, holds matrices or kernels, which bf16 training casts."""
        return stacked.ndim > 2

    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return the new weights and their copies."""
        new = [w - RATE * g.float() for w, g in zip(inputs.weights, inputs.gradients, strict=True)]
        return *new, *(weight.to(self.dtype) for weight in new if self.is_cast(weight))

    def variants(self) -> dict[str, Variant]:
        return {STREAMS: separate_updates, "one list": update_of_one_list, "stacked": update_of_stacked}


def _update(problem: Update, inputs: SimpleNamespace, tensors: Callable[[Tensor], list[Tensor]]) -> Work:
    """Return one update of the tensors that ``tensors`` makes of each stacked one."""
    cast = [number for number, weight in enumerate(inputs.weights) if problem.is_cast(weight)]
    stacked = [weight.clone() for weight in inputs.weights]
    stacked_copies = [torch.empty_like(stacked[number], dtype=problem.dtype) for number in cast]
    weights, gradients = ([tensors(t) for t in group] for group in (stacked, inputs.gradients))
    copies = [copy for t in stacked_copies for copy in tensors(t)]
    others = [number for number in range(len(weights)) if number not in cast]
    to_cast, matrices = ([tensor for number in cast for tensor in group[number]] for group in (gradients, weights))
    uncast, vectors = ([tensor for number in others for tensor in group[number]] for group in (gradients, weights))

    def work() -> Result:
        moves = [torch.empty_like(gradient, dtype=torch.float32) for gradient in to_cast]
        torch._foreach_copy_(moves, to_cast)
        torch._foreach_add_([*matrices, *vectors], [*moves, *uncast], alpha=-RATE)
        torch._foreach_copy_(copies, matrices)
        return (*stacked, *stacked_copies)

    return [work]


def separate_updates(problem: Update, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Update each lane by itself."""

    def lane(number: int) -> Callable[[], Result]:
        own = SimpleNamespace(
            weights=[weight[number : number + 1] for weight in inputs.weights],
            gradients=[gradient[number : number + 1] for gradient in inputs.gradients],
        )
        (work,) = _update(problem, own, lambda stacked: [stacked[0]])
        return lambda: tuple(result[0] for result in work())

    return {"": [lane(number) for number in range(problem.lanes)]}


def update_of_one_list(problem: Update, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Update the tensors of all lanes as one list."""
    return {"": _update(problem, inputs, lambda stacked: list(stacked))}


def update_of_stacked(problem: Update, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Update one tensor for each layer, in which the lanes are stacked."""
    return {"": _update(problem, inputs, lambda stacked: [stacked])}


def problems(width: int, size: int, lanes: int, batch: int, device: torch.device) -> list[Problem]:
    """Return the parts of a step of ResNet-18, whose shapes and occurrences are read from the network."""
    convolutions: Counter[tuple[int, int, int, int, int]] = Counter()
    norms: Counter[tuple[int, int, bool, bool]] = Counter()

    def note_convolution(layer: Any, inputs: tuple[Tensor], _: Tensor) -> None:
        convolutions[
            layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0], inputs[0].shape[-1]
        ] += 1

    def note_norm(layer: nn.BatchNorm2d, x: Tensor, *, relu: bool = False, residual: Tensor | None = None,
                  passes: int = 1) -> Tensor:  # fmt: skip
        norms[x.shape[1], x.shape[-1], relu, residual is not None] += 1
        return x

    with torch.device("meta"), patch("forgetless.networks.resnet.batch_norm", note_norm):
        network = resnet18(CLASSES, width=width)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(note_convolution)
        network(torch.empty(1, 3, size, size))
    shapes = tuple(tuple(parameter.shape) for parameter in network.parameters())
    common = (lanes, batch, device)
    return [
        *(Convolution(*common, count, *shape) for shape, count in convolutions.items()),
        *(
            Norm(*common, count, channels, image_size, relu, residual)
            for (channels, image_size, relu, residual), count in norms.items()
        ),
        Augmentation(*common, 1, size),
        CrossEntropy(*common, 1),
        Update(*common, 1, shapes),
    ]
