"""STAR on DER++: keep outputs for stored examples stable around the weights (Eskandar et al. 2025).

    L = L_DER++(θ) + λ · D(θ + δ),   D(θ') = mean KL(softmax f(x; θ) ‖ softmax f(x; θ'))

x is a further draw from the reservoir. The mean is over those of its examples that the network classifies correctly.
δ moves each matrix or kernel W of the network along the gradient of D, by the share γ of its norm:

    δ_W = γ ‖W‖ g / ‖g‖,   g = ∂D / ∂W at θ + ε

Biases and the parameters of batch norm stay. Only θ' has a gradient in D, and δ counts as constant.

The gradient of D is 0 at θ, hence the noise ε. In the authors' code it is 10⁻²⁰ ‖W‖, which rounding in fp32 removes, so
that g is a direction of rounding errors. Here ε_W is normal noise scaled to the norm γ ‖W‖ / 10. Other deviations: the
passes at other weights than θ leave the running statistics of batch norm alone, and a draw with a single correct
example counts. As the authors do by default, δ takes one step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.derpp import derpp_loss
from forgetless.methods.layers import WithWeights
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step

NOISE = 0.1  # norm of the noise ε, as a share of that of the perturbation δ


@final
@dataclass
class STAR(Method):
    """Train as DER++, and keep the outputs for stored examples where the weights may move next."""

    memory: ClassVar[str] = "reservoir"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = setting(0.1, "Weight α of the distance to the stored logits.", least=0)
    beta: float = setting(0.5, "Weight β of the loss on the stored labels.", least=0)
    stability: float = setting(0.01, "Weight λ of the divergence at the perturbed weights.", least=0)
    gamma: float = setting(0.05, "Norm γ of the perturbation, as a share of the norm of the weights.", least=0)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            return sgd_step(learner, batch)
        old = learner.replay()
        noise = [
            torch.randn(weight.shape, generator=learner.generator, device=learner.device)
            for weight in matrices(learner).values()
        ]
        divergence = divergence_nearby(learner, old["x"], old["y"], self.gamma, noise)
        loss, logits = derpp_loss(learner, batch, self.alpha, self.beta)
        loss = loss + self.stability * divergence
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}


def matrices(learner: Learner) -> dict[str, Tensor]:
    """Return the parameters that are perturbed, by name: those of two or more dimensions."""
    return {name: weight for name, weight in learner.network.named_parameters() if weight.ndim > 1}


def divergence_nearby(learner: Learner, x: Tensor, y: Tensor, gamma: float, noise: Sequence[Tensor]) -> Tensor:
    """Return D(θ + δ) for inputs ``x`` with labels ``y``, differentiable by the weights θ with a constant δ."""
    named = matrices(learner)
    with torch.no_grad():
        outputs = learner.forward(x).softmax(1)
        correct = (outputs.argmax(1) == y).float()
        shares = correct / correct.sum().clamp(min=1)

    def divergence(weights: Sequence[Tensor]) -> Tensor:
        statistics = {name: buffer.clone() for name, buffer in learner.network.named_buffers()}
        network = WithWeights(learner.network, statistics | dict(zip(named, weights, strict=True)))
        logarithms = learner.engine.forward(network, x).log_softmax(1)
        return (shares * F.kl_div(logarithms, outputs, reduction="none").sum(1)).sum()

    delta = perturbation(divergence, list(named.values()), gamma, noise)
    return divergence([weight + move for weight, move in zip(named.values(), delta, strict=True)])


def perturbation(
    divergence: Callable[[Sequence[Tensor]], Tensor], weights: Sequence[Tensor], gamma: float, noise: Sequence[Tensor]
) -> list[Tensor]:
    """Return a move δ for each weight: up the gradient of ``divergence`` near the weights, with the norm γ ‖W‖."""
    lengths = [gamma * weight.detach().norm() for weight in weights]
    moves = [scaled_to(NOISE * length, direction) for length, direction in zip(lengths, noise, strict=True)]
    starts = [(weight.detach() + move).requires_grad_() for weight, move in zip(weights, moves, strict=True)]
    gradients = torch.autograd.grad(divergence(starts), starts, allow_unused=True, materialize_grads=True)
    return [scaled_to(length, gradient) for length, gradient in zip(lengths, gradients, strict=True)]


def scaled_to(length: Tensor, direction: Tensor) -> Tensor:
    """Return ``direction`` scaled to a norm, or zeros for a direction of zeros."""
    factor: Tensor = length / direction.norm().clamp(min=1e-20)
    return direction * factor
