"""SGD on all tasks at once, shuffled: the upper bound.

    L = CE(batch)

It trains for the same number of epochs over all tasks as other methods train over each task.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step


@final
@dataclass
class Joint(Method):
    """Train on the shuffled examples of all tasks."""

    joint: ClassVar[bool] = True
    sequential: ClassVar[bool] = False

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return sgd_step(learner, batch)
