"""What is checked around a user's loop: every batch, the first one thoroughly, and that no other FPF interferes."""

from collections.abc import Mapping
from typing import final
from warnings import warn

from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.memory.batch import Inputs, Targets, pack, split_labels
from forgetless.memory.buffer import Buffer
from forgetless.memory.labels import check_labels
from forgetless.repair.groups import float_tensors
from forgetless.repair.objective import Objective
from forgetless.repair.settings import Finetune
from forgetless.repair.trial import check_vocabulary, try_out

SHARED = (
    "another FPF observes the same network: each takes the other's finetunings for training. Use one FPF per network"
)
OBSERVER = "_forgetless_observer"  # the attribute of a network that names the FPF that observes it


@final
class Observer:
    """A mark that an FPF leaves on its network. In copies and pickles of the network it is None."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@final
class Checks:
    """The checks of one FPF, whose finetunings may move the tensors ``names``."""

    def __init__(self, model: nn.Module, objective: Objective, settings: Finetune, names: list[str]) -> None:
        self._model, self._network, self._objective, self._settings = model, unwrap(model), objective, settings
        self._names = names
        self.tried = False  # whether a batch has passed forward and loss
        self._alone = True
        self._mark: Observer | None = None

    def rows(self, x: Inputs, y: Targets | None, logits: Tensor | None, buffer: Buffer) -> dict[str, Tensor]:
        """Return a batch as columns of ``buffer``, checked before anything is changed."""
        if y is None:
            x, y = split_labels(x)
        objective, distill = self._objective, self._settings.distill
        rows = buffer.rows_of(pack(x, y, logits, distill))
        if logits is not None and objective.classifies(rows) and isinstance(y, Tensor):
            # On a GPU the values are checked at the next finetuning: here it would be a GPU-to-CPU sync.
            check_labels(y, logits, values=y.device.type == "cpu")
        rows = objective.targets(rows)
        if not self.tried:
            try_out(self._model, objective, rows, names=self._names, batch=self._settings.batch, distill=distill)
            self.tried = True
        return rows

    def check_tokens(self, *batches: Mapping[str, Tensor]) -> None:
        """Raise ``ValueError`` if the network has no embedding for some tokens."""
        for rows in batches:
            check_vocabulary(self._network, rows)

    def check_network(self) -> None:
        """Raise ``ValueError`` if the network has lost tensors before the first step of this FPF.

        Warn, once, if another FPF has observed the network between two steps of this one.
        """
        marks = vars(self._network)
        if self._mark is None:
            self._check_names()
            self._mark = marks[OBSERVER] = Observer()
        elif self._alone and marks.get(OBSERVER) is not self._mark:
            self._alone = False
            warn(SHARED, stacklevel=3)

    def _check_names(self) -> None:
        present = float_tensors(self._network)
        if lost := [name for name in self._names if name not in present]:
            raise ValueError(
                f"the network no longer has {lost[0]}, one of {len(lost):,} tensors that were renamed or removed after "
                "FPF was made, such as by get_peft_model; make FPF afterwards, with the model that is trained"
            )
