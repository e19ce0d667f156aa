"""What the training earns for repairs within a budget, and what they spend.

Both are counted in training examples, of all processes together. An example that is only measured counts as a third,
since it has no backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final
from warnings import warn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.memory.buffer import HELD_OUT
from forgetless.repair.recollection import Recollection
from forgetless.repair.settings import Finetune
from forgetless.repair.tuning import LONG, SHORT, Tuner

RESERVE = 100  # steps for the end, even if less of the budget is left; repairs during training leave them over
PASSES = 9  # over the buffer for the end, if they take more steps than that
LANGUAGE_RESERVE = 60  # steps for the end, of causal language models
SHARE = 0.75  # the largest share of the budget that repairs during training leave over
RECALL = 1 / 3  # of the budget, for predictions of new sequences by a language model until a shift is announced


@final
class Account:
    """The account of one network's repairs. With ``all_at_end`` the whole budget is left for the end."""

    def __init__(self, settings: Finetune, tuner: Tuner, recollection: Recollection, *, all_at_end: bool) -> None:
        assert settings.budget is not None
        self._budget, self._most = settings.budget, settings.batch
        self._spread, self._all_at_end = settings.spread and not all_at_end, all_at_end
        self._tuner, self._recollection = tuner, recollection
        self.processes: Processes = ALONE
        self.trained = 0  # examples of the training so far, in all processes
        self._uncounted = 0  # examples of this process since then
        self.largest = 0  # examples of the largest training step so far, in this process
        self._largest_together = 0  # the sum over processes, as of the last count
        self._due_from = 0.0  # no repair is due before the training had this number of examples
        self.held = 0  # examples of the buffer, as of ``look``

    def add(self, examples: int) -> None:
        """Add the examples of a training step of this process."""
        self._uncounted += examples
        self.largest = max(self.largest, examples)

    def count(self) -> None:
        """Add the examples of all processes to those of the training."""
        examples = self._uncounted
        if self.processes.count > 1:
            counts = self.processes.gather((examples, self.largest))
            examples, self._largest_together = map(sum, zip(*counts, strict=True))
        self.trained += examples
        self._uncounted = 0

    def look(self, held: int) -> None:
        """Note how many examples the buffer holds now."""
        self.held = sum(self.processes.gather(held))
        self._due_from = 0.0  # it may have held more before

    def affords_repair(self) -> bool:
        """Return whether the budget allows a repair during training now."""
        if self.trained < self._due_from:
            return False
        missing = SHORT * self.batch - self._available()
        self._due_from = self.trained + missing / self._budget - 1  # an example earns no more than the budget
        return self._spread and missing <= 0

    def affords_recall(self, held: int) -> bool:
        """Return whether the budget allows to predict this number of sequences, before a shift is announced."""
        predicted: int = self._recollection.predicted + sum(self.processes.gather(held))
        return predicted / 3 <= RECALL * self._earned

    def steps(self) -> int:
        """Return the number of steps of a repair during training: as many as the budget has earned."""
        return min(LONG, max(SHORT, int(self._available() / self.batch)))

    def limit(self) -> int:
        """Return the number of steps that the repair at the end may take."""
        left = self._earned - self.spent
        if not self._all_at_end:
            return max(self._reserve, int(left / self._most))
        scored = 3 * self.held_out  # by the scores of groups, and by measurements around the repair
        return max(LANGUAGE_RESERVE, int((left - scored) / self._most))

    @property
    def batch(self) -> int:
        """The number of examples per step of a repair during training: as many as a training step has, up to a limit.

        Small batches take more steps within the budget, which is worth more to a network that is still in training.
        """
        count = self.processes.count
        return max(2, count, min(self.largest if count == 1 else self._largest_together, self._most))

    @property
    def spent(self) -> float:
        """The number of training examples that cost as much as all repairs so far."""
        return self._tuner.examples + (self._tuner.measured * self.held_out + self._recollection.predicted) / 3

    @property
    def held_out(self) -> int:
        """The number of held-out examples in the buffer."""
        return -(-self.held // HELD_OUT)

    @property
    def cost(self) -> float | None:
        """The cost of all repairs so far as a share of the training's; None without training."""
        return self.spent / self.trained if self.trained else None

    def state_dict(self) -> dict[str, Any]:
        """Return what later repairs depend on."""
        return {
            "trained": self.trained,
            "uncounted": self._uncounted,
            "largest": self.largest,
            "held": self.held,
            "budget": self._budget,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``. The budget may be another."""
        self.trained, self._uncounted = state["trained"], state["uncounted"]
        self.largest, self.held, self._due_from = state["largest"], state["held"], 0.0
        if state["budget"] != self._budget:
            warn(f"the state was saved with budget {state['budget']}; this FPF has {self._budget}", stacklevel=4)

    @property
    def _earned(self) -> float:
        return self._budget * self.trained

    @property
    def _reserve(self) -> int:
        """The steps that are left over for the end."""
        return max(RESERVE, PASSES * self.held // self._most)

    def _available(self) -> float:
        """Return how many examples a repair during training may use now."""
        return self._earned - min(SHARE * self._earned, self._reserve * self._most) - self.spent
