"""FPF and k-FPF as a callback of Hugging Face's Trainer.

    fpf = FPF(model, capacity=200, every=50)
    for task in tasks:
        Trainer(model, args, train_dataset=task, callbacks=[FPFCallback(fpf)]).train()
    fpf.finish()

A Trainer tells its callbacks nothing of its batches, so while it trains a hook on the model's forward pass takes them:
the tensors it is called with, ``labels`` among them, and the logits. What one optimiser step has seen is observed once
it is made. A new ``train()`` is a new task. The state of ``fpf`` is written into each checkpoint of the Trainer, as
``forgetless.pt``, and read when training goes on from it; reading it executes nothing.

The buffer holds examples of one shape: pad text to one length (``padding="max_length"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forgetless.fpf import FPF
from forgetless.grouping import unwrap
from forgetless.integrations.batches import Observed, joined


@final
class FPFCallback(TrainerCallback):  # type: ignore[misc]
    """Observes each optimiser step of a Trainer; see the head of this file.

    Args:
        fpf: an ``FPF`` around the model
        labels: the argument of the model that holds the labels
        tasks: whether each ``train()`` after the first begins a new task; False: ``fpf`` finds the shifts by itself
    """

    def __init__(self, fpf: FPF, labels: str = "labels", *, tasks: bool = True) -> None:
        self.fpf, self.labels, self.tasks = fpf, labels, tasks
        self._seen: list[Observed] = []
        self._hook: RemovableHandle | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step:
            self._load(args, state)
        elif self.tasks and self.fpf.step:
            self.fpf.boundary()
        self._seen = []
        self._watch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not self._seen:
            raise ValueError(
                f"the model was not called with {self.labels!r} in this step; name the argument that holds the labels: "
                "FPFCallback(fpf, labels=...)"
            )
        seen, self._seen = self._seen, []
        self._leave()  # the finetuning calls the model too
        try:
            self.fpf.observe(*joined(seen))
        finally:
            self._watch()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._leave()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        torch.save(self.fpf.state_dict(), self._file(args, state))

    def _watch(self) -> None:
        self._leave()
        self._hook = unwrap(self.fpf.model).register_forward_hook(self._take, with_kwargs=True)

    def _leave(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _take(self, model: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
        labels = named.get(self.labels)
        if not model.training or not isinstance(labels, Tensor):
            return
        inputs = {
            name: value.detach()
            for name, value in named.items()
            if name != self.labels and isinstance(value, Tensor) and value.ndim and len(value) == len(labels)
        }
        logits = output.get("logits") if isinstance(output, Mapping) else None
        self._seen.append((inputs, labels.detach(), None if logits is None else logits.detach()))

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Training goes on from the checkpoint of this step."""
        file = self._file(args, state)
        if not file.exists():
            raise FileNotFoundError(
                f"{file} is missing: the checkpoint was written without FPFCallback, so that FPF cannot go on from it"
            )
        self.fpf.load_state_dict(torch.load(file, weights_only=True))

    def _file(self, args: TrainingArguments, state: TrainerState) -> Path:
        assert args.output_dir is not None, "a Trainer that writes checkpoints has a folder for them"
        rank = self.fpf.processes.rank
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / f"forgetless{rank or ''}.pt"
