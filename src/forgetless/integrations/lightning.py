"""FPF and k-FPF as a callback of Lightning's Trainer.

    fpf = FPF(module, capacity=200, every=50)
    for loader in tasks:
        Trainer(callbacks=[FPFCallback(fpf)], ...).fit(module, loader)
    fpf.finish()

What one optimiser step has seen is observed once it is made; with accumulated gradients that is several batches. A new
``fit`` is a new task. The state of ``fpf`` goes into Lightning's checkpoints and comes back from them. Under the
strategy ddp each process keeps its part of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from forgetless.fpf import FPF
from forgetless.integrations.batches import Example, Observed, joined


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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen, self._steps = [], trainer.global_step
        if self.tasks and self.fpf.step and trainer.global_step == 0:  # else a fit that goes on from a checkpoint
            self.fpf.boundary()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
        if self.fpf.distill and logits is None:
            raise ValueError(
                f"distill is {self.fpf.distill}, which needs logits: return {{'loss': loss, 'logits': logits}} from "
                "training_step"
            )
        x, y = self.split(batch)
        self._seen.append((x, y, logits))
        if trainer.global_step > self._steps:  # the optimiser has stepped
            self._steps = trainer.global_step
            seen, self._seen = self._seen, []
            self.fpf.observe(*joined(seen))

    def state_dict(self) -> dict[str, Any]:
        return self.fpf.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.fpf.load_state_dict(state_dict)
