"""FPF and k-FPF as a callback of Lightning's Trainer.

    fpf = FPF(module, capacity=200, every=50)
    for loader in tasks:
        Trainer(callbacks=[FPFCallback(fpf)], ...).fit(module, loader)
    fpf.finish()

The callback observes every optimiser step: one batch, or several if gradients are accumulated. Each ``fit`` is a task.
Lightning's checkpoints include the state of ``fpf``, and ``fit(ckpt_path=...)`` resumes from it. With the strategy ddp
each process keeps its share of the buffer. Strategies that start processes inside ``fit`` (ddp_spawn, ddp_notebook)
are not supported: the calling process would not see what they observe.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from forgetless.fpf import FPF
from forgetless.integrations.batches import Observation, joined
from forgetless.memory.batch import Inputs, Targets

TUNER_FILES = (".lr_find_", ".scale_batch_size_")  # checkpoints from which Lightning's Tuner undoes its own steps


def split_batch(batch: Any) -> tuple[Inputs, Tensor]:
    """Return the inputs and labels of a batch ``(x, y)``, or of a mapping with the key ``labels``."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(
        f"a batch of type {type(batch).__name__} is neither (x, y) nor a mapping with 'labels': "
        "pass FPFCallback(fpf, split=...), a function from a batch to (x, y)"
    )


@final
class FPFCallback(Callback):
    """Observe each optimiser step of a Trainer.

    Args:
        fpf: An ``FPF`` around the module, or around the network in it that returns the logits. If it distils,
            ``training_step`` must return a mapping with ``loss`` and ``logits``.
        split: A function from a batch to its inputs and labels.
        tasks: Whether each ``fit`` after the first begins a new task. If not, ``fpf`` detects the shifts.
    """

    def __init__(
        self, fpf: FPF, split: Callable[[Any], tuple[Inputs, Targets]] = split_batch, *, tasks: bool = True
    ) -> None:
        self.fpf, self.split, self.tasks = fpf, split, tasks
        self._batches: list[Observation] = []  # since the last optimiser step
        self._steps = 0
        self._state: Mapping[str, Any] | None = None  # from a checkpoint, until its training resumes

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Drop the state of a checkpoint that was only tested."""
        if stage == "fit":
            self._state = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resume from a checkpoint, or begin a task."""
        if Path(trainer.ckpt_path or "").name.startswith(TUNER_FILES):
            self._state = None
        fitted = {id(parameter) for parameter in pl_module.parameters()}
        if any(id(parameter) not in fitted for parameter in self.fpf.model.parameters()):
            raise ValueError("fpf is around another network than the one being fitted: make FPF(module) from that one")
        self._batches, self._steps = [], trainer.global_step
        if not self._load() and self.tasks and self.fpf.step:
            self.fpf.boundary()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state of a checkpoint whose training had ended, so that nothing started."""
        self._load()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the batch, and observe what was collected if the optimiser has stepped."""
        empty = isinstance(outputs, Mapping) and not outputs and pl_module.automatic_optimization
        if not (outputs is None or empty):  # else training_step returned None: the batch was skipped
            logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
            if self.fpf.settings.distill and logits is None:
                raise ValueError(
                    f"distill is {self.fpf.settings.distill}, which needs logits: return "
                    "{'loss': loss, 'logits': logits} from training_step"
                )
            self._batches.append((*self.split(batch), logits))
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            batches, self._batches = self._batches, []
            if batches:
                self.fpf.observe(*joined(batches))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every process, for a checkpoint."""
        return {"ranks": self.fpf.processes.gather(self.fpf.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until its training resumes."""
        self._state = state_dict

    def _load(self) -> bool:
        """Load the state of a checkpoint, if there is one, and return whether there was."""
        self.fpf.settle()
        if self._state is None:
            return False
        states, self._state = self._state["ranks"], None
        if len(states) != self.fpf.processes.count:
            raise ValueError(
                f"the checkpoint is from {len(states)} processes, but there are {self.fpf.processes.count} now; the "
                f"buffer cannot be redistributed: start {len(states)} processes"
            )
        self.fpf.load_state_dict(states[self.fpf.processes.rank])
        return True
