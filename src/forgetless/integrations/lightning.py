"""FPF and k-FPF as a callback of Lightning's Trainer.

    fpf = FPF(module, capacity=200, every=50)
    for loader in tasks:
        Trainer(callbacks=[FPFCallback(fpf)], ...).fit(module, loader)
    fpf.finish()

What one optimiser step has seen is observed once it is made; with accumulated gradients that is several batches. A new
``fit`` is a new task. The state of ``fpf`` goes into Lightning's checkpoints; ``fit(ckpt_path=...)`` goes on from it.
Under the strategy ddp each process keeps its part of the buffer; strategies that start processes from within ``fit``
(ddp_spawn, ddp_notebook) leave this process's ``fpf`` without anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from forgetless.fpf import FPF
from forgetless.integrations.batches import Example, Observed, joined

TUNING = (".lr_find_", ".scale_batch_size_")  # checkpoints by which Lightning's Tuner undoes its own steps


def pair(batch: Any) -> tuple[Example, Tensor]:
    """Inputs and labels of a batch ``(x, y)``, or of a mapping whose labels are under ``labels``."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(
        f"a batch of type {type(batch).__name__} is neither (x, y) nor a mapping with 'labels': "
        "give FPFCallback(fpf, split=...), a function from a batch to (x, y)"
    )


@final
class FPFCallback(Callback):
    """Observes each optimiser step of a Trainer; see the head of this file.

    Args:
        fpf: an ``FPF`` around the module (or the network in it that gives the logits)
        split: batch -> (x, y), where a batch is neither that nor a mapping with ``labels``
        tasks: whether each ``fit`` after the first begins a new task; False: ``fpf`` finds the shifts by itself

    With ``distill``, ``training_step`` returns a mapping with ``loss`` and ``logits``.
    """

    def __init__(self, fpf: FPF, split: Callable[[Any], tuple[Example, Tensor]] = pair, *, tasks: bool = True) -> None:
        self.fpf, self.split, self.tasks = fpf, split, tasks
        self._seen: list[Observed] = []
        self._steps = 0
        self._state: Mapping[str, Any] | None = None  # of a checkpoint, until the training that goes on from it starts

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # a state that came since the last training was of a checkpoint to test, say
            self._state = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if Path(trainer.ckpt_path or "").name.startswith(TUNING):
            self._state = None
        fitted = {id(parameter) for parameter in pl_module.parameters()}
        if any(id(parameter) not in fitted for parameter in self.fpf.model.parameters()):
            raise ValueError("fpf is around another network than the one that is fitted: make FPF(module) of this one")
        self._seen, self._steps = [], trainer.global_step
        self.fpf.settle()
        if self._state is not None:
            self._load()
        elif self.tasks and self.fpf.step:
            self.fpf.boundary()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._state is not None:  # the checkpoint was of a training that had ended: there was nothing to start
            self.fpf.settle()
            self._load()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        empty = isinstance(outputs, Mapping) and not outputs and pl_module.automatic_optimization
        if not (outputs is None or empty):  # else ``training_step`` gave None: the batch was skipped
            logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
            if self.fpf.distill and logits is None:
                raise ValueError(
                    f"distill is {self.fpf.distill}, which needs logits: return {{'loss': loss, 'logits': logits}} "
                    "from training_step"
                )
            x, y = self.split(batch)
            self._seen.append((x, y, logits))
        if trainer.global_step > self._steps:  # the optimiser has stepped
            self._steps = trainer.global_step
            seen, self._seen = self._seen, []
            if seen:
                self.fpf.observe(*joined(seen))

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self.fpf.processes.gather(self.fpf.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    def _load(self) -> None:
        assert self._state is not None
        states, self._state = self._state["ranks"], None
        if len(states) != self.fpf.processes.count:
            raise ValueError(
                f"the checkpoint is of {len(states)} processes; these are {self.fpf.processes.count}, and the buffer "
                "cannot be shared out anew"
            )
        self.fpf.load_state_dict(states[self.fpf.processes.rank])
