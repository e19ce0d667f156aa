"""CLS-ER: experience replay with a fast and a slow average of the weights (Arani et al. 2022).

    L = CE(batch ∪ B) + λ · MSE(f(x'; θ), z'),   (x', y') ∈ B drawn from a reservoir

z' are the outputs of the plastic average θ_P or of the stable average θ_S of the weights: for each example, of the one
whose softmax of the label y' is higher. After step n, each average is updated with its own probability, r_P or r_S:

    θ_P ← a θ_P + (1 − a) θ,   a = min(1 − 1/(n + 1), α_P)

The stable average predicts. At the end of the stream it becomes the network, so that FPF repairs what predicts. During
the stream k-FPF repairs θ, and the averages follow.

As in the authors' code, the second term has its own forward pass, and both averages are in training mode: their batch
norm uses the statistics of the replayed examples, and their running statistics follow these. An average spans about
1 / (r (1 − α)) steps. The defaults, 100 steps and λ = 0.15, suit short streams: of six pairs they are the best on the
validation split of Seq-digits and the last on that of Seq-MNIST (benchmarks/records/cls-er-averages.json). The authors'
values for Seq-CIFAR-10 are for 50 epochs per task.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step


@final
@dataclass
class CLSER(Method):
    """Replay, match the better of two averages of the weights on replayed examples, and predict with the slower."""

    memory: ClassVar[str] = "reservoir"
    consistency: float = setting(0.15, "Weight λ of the distance to the outputs of the averages.", least=0)
    plastic_rate: float = setting(1.0, "Probability r_P that a step updates the plastic average.", least=0, most=1)
    stable_rate: float = setting(0.9, "Probability r_S that a step updates the stable average.", least=0, most=1)
    plastic_decay: float = setting(0.99, "Decay α_P of the plastic average.", least=0, most=1)
    stable_decay: float = setting(0.99, "Decay α_S of the stable average.", least=0, most=1)

    def begin(self, learner: Learner) -> None:
        self.plastic, self.stable = (copy.deepcopy(learner.network).requires_grad_(False) for _ in range(2))
        self.steps = torch.zeros((), device=learner.device)
        self.finished = False  # whether the stable average has become the network

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            loss, columns = sgd_step(learner, batch)
        else:
            old = learner.replay()
            with torch.no_grad():
                plastic, stable = (learner.engine.forward(network, old["x"]) for network in (self.plastic, self.stable))
                targets = better_outputs(plastic, stable, old["y"])
            distance = F.mse_loss(learner.forward(old["x"]), targets)
            logits = learner.forward(torch.cat([learner.augment(batch.x), old["x"]]))
            total = F.cross_entropy(logits, torch.cat([batch.y, old["y"]])) + self.consistency * distance
            learner.update(total)
            loss, columns = total.detach(), {"logits": logits[: len(batch.y)].detach()}
        self._average(learner)
        return loss, columns

    @torch.no_grad()
    def _average(self, learner: Learner) -> None:
        """Move each average towards the network with its probability, by a share of the way that shrinks at first."""
        self.steps += 1
        mean = 1 / (self.steps + 1)  # the share that makes an average the mean of all weights so far
        draws = torch.rand(2, generator=learner.generator, device=learner.device)
        plastic = torch.where(draws[0] < self.plastic_rate, mean.clamp(min=1 - self.plastic_decay), 0.0)
        stable = torch.where(draws[1] < self.stable_rate, mean.clamp(min=1 - self.stable_decay), 0.0)
        for network, share in ((self.plastic, plastic), (self.stable, stable)):
            average: list[Tensor] = list(network.parameters())
            weights: list[Tensor] = list(learner.network.parameters())
            torch._foreach_add_(average, torch._foreach_mul(torch._foreach_sub(weights, average), share))

    def finish(self, learner: Learner) -> None:
        learner.network.load_state_dict(self.stable.state_dict())
        self.finished = True

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        if self.finished:
            return learner.forward(x)
        with evaluating(self.stable):
            return learner.engine.forward(self.stable, x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        networks = {"plastic": dict(self.plastic.state_dict()), "stable": dict(self.stable.state_dict())}
        return {**networks, "steps": self.steps, "finished": self.finished}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        self.plastic.load_state_dict(state["plastic"])
        self.stable.load_state_dict(state["stable"])
        self.steps.copy_(state["steps"])
        self.finished = state["finished"]


def better_outputs(plastic: Tensor, stable: Tensor, y: Tensor) -> Tensor:
    """Return for each example the logits, of two networks, whose softmax of the label is higher."""
    scores = [logits.softmax(1).gather(1, y[:, None]) for logits in (plastic, stable)]
    return torch.where(scores[1] > scores[0], stable, plastic)
