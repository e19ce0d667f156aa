"""FPF and k-FPF as a plugin of Avalanche, around any of its supervised strategies.

    fpf = FPF(model, capacity=200, every=50)
    strategy = Naive(model=model, ..., plugins=[FPFPlugin(fpf)])
    for experience in benchmark.train_stream:
        strategy.train(experience)
    fpf.finish()

Every iteration is observed once its update is made; each experience is a task. What a replay plugin adds to a batch is
left out of FPF's buffer by its label: examples of classes that this experience does not have. Where experiences share
classes (domain-incremental streams) replayed examples are remembered again. Images are observed as the strategy sees
them, after Avalanche's transformations. Models that grow or take task labels are refused; one process only.
"""

from __future__ import annotations

from typing import Any, final

import torch
from avalanche.models import DynamicModule, MultiTaskModule
from avalanche.training.plugins import SupervisedPlugin

from forgetless.fpf import FPF


@final
class FPFPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Observes each iteration of a strategy; see the head of this file.

    Args:
        fpf: an ``FPF`` around the strategy's model
        tasks: whether each experience after the first begins a new task; False: ``fpf`` finds the shifts by itself
    """

    def __init__(self, fpf: FPF, *, tasks: bool = True) -> None:
        super().__init__()
        self.fpf, self.tasks = fpf, tasks

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        if any(isinstance(module, DynamicModule | MultiTaskModule) for module in strategy.model.modules()):
            raise ValueError(
                "the model has layers that grow or that depend on task labels, which FPF cannot follow; give it an "
                "output layer for all classes"
            )
        self.fpf.settle()
        begins = getattr(strategy.experience, "is_first_subexp", True)  # an online stream cuts experiences into parts
        if self.tasks and self.fpf.step and begins:
            self.fpf.boundary()

    def after_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        x, y, logits = strategy.mb_x, strategy.mb_y, strategy.mb_output.detach()
        classes = getattr(strategy.experience, "classes_in_this_experience", None)
        if classes is not None:
            new = torch.isin(y, torch.tensor(list(classes), device=y.device))
            x, y, logits = x[new], y[new], logits[new]
        if len(y):
            self.fpf.observe(x, y, logits)
