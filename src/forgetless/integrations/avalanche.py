"""FPF and k-FPF as a plugin of Avalanche, for any of its supervised strategies.

    fpf = FPF(model, capacity=200, every=50)
    strategy = Naive(model=model, ..., plugins=[FPFPlugin(fpf)])
    for experience in benchmark.train_stream:
        strategy.train(experience)
    fpf.finish()

The plugin observes every iteration after its update, with images as Avalanche transformed them. Each experience is a
task. A replay plugin adds older examples to a batch. They stay out of FPF's buffer if the experience does not have
their class; where experiences share classes (domain-incremental streams), they are stored again.
"""

from typing import Any, final

import torch
from avalanche.models import DynamicModule, MultiTaskModule
from avalanche.training.plugins import SupervisedPlugin

from forgetless.fpf import FPF


@final
class FPFPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Observe each iteration of a strategy that trains in one process.

    Args:
        fpf: An ``FPF`` around the strategy's model. Models that grow or take task labels are refused.
        tasks: Whether each experience after the first begins a new task. If not, ``fpf`` detects the shifts.
    """

    def __init__(self, fpf: FPF, *, tasks: bool = True) -> None:
        super().__init__()
        self.fpf, self.tasks = fpf, tasks

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Begin a task, or refuse the model."""
        if any(isinstance(module, DynamicModule | MultiTaskModule) for module in strategy.model.modules()):
            raise ValueError(
                "the model has layers that grow or depend on task labels, which FPF cannot follow; use one output "
                "layer for all classes"
            )
        self.fpf.settle()
        begins = getattr(strategy.experience, "is_first_subexp", True)  # an online stream splits its experiences
        if self.tasks and self.fpf.step and begins:
            self.fpf.boundary()

    def after_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Observe the batch."""
        x, y, logits = strategy.mb_x, strategy.mb_y, strategy.mb_output.detach()
        classes = getattr(strategy.experience, "classes_in_this_experience", None)
        if classes is not None:
            new = torch.isin(y, torch.tensor(list(classes), device=y.device))
            x, y, logits = x[new], y[new], logits[new]
        if len(y):
            self.fpf.observe(x, y, logits)
