"""FPF and k-FPF as a callback of Hugging Face's Trainer.

    fpf = FPF(model, capacity=200, every=50)
    for task in tasks:
        Trainer(model, args, train_dataset=task, callbacks=[FPFCallback(fpf)]).train()
    fpf.finish()

A Trainer tells its callbacks nothing of its batches, so while it trains a hook on the model's forward pass takes them:
the tensors it is called with, ``labels`` among them, and the logits. What one optimiser step has seen is observed once
it is made. A new ``train()`` is a new task. The state of ``fpf`` is written into each checkpoint of the Trainer, as
``forgetless.pt`` (``forgetless1.pt``, … by the other processes), and read when training goes on from it; reading it
executes nothing.

The buffer holds examples of one shape: pad text to one length (``padding="max_length"``). Inputs without a row for
each example are not kept.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from forgetless.compute.modules import unwrap
from forgetless.fpf import FPF
from forgetless.integrations.batches import Observed, joined
from forgetless.repair.finetune import call

CALLS = 64  # of the model for one batch of a step that are kept, the last


@final
class FPFCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Observes each optimiser step of a Trainer; see the head of this file.

    Args:
        fpf: an ``FPF`` around the model
        labels: the argument of the model that holds the labels
        tasks: whether each ``train()`` after the first begins a new task; False: ``fpf`` finds the shifts by itself
        checkpoint: the checkpoint that training goes on from, where it is not in the Trainer's ``output_dir``
    """

    def __init__(
        self, fpf: FPF, labels: str = "labels", *, tasks: bool = True, checkpoint: str | Path | None = None
    ) -> None:
        if not isinstance(fpf, FPF):
            raise ValueError(
                f"fpf is {fpf!r}; it must be a forgetless.FPF. A Trainer with restore_callback_states_from_checkpoint "
                "makes its callbacks anew, without one: leave that off, the checkpoint's state is read all the same"
            )
        self.fpf, self.labels, self.tasks, self.checkpoint = fpf, labels, tasks, checkpoint
        self._training = ""  # the same in all processes; with the step it tells the states of one save from others
        self._seen: deque[Observed] = deque(maxlen=CALLS)  # else a training that was interrupted might go on to fill it
        self._columns: set[str] | None = None  # the inputs that are kept, as the first batch shows them
        self._hook: RemovableHandle | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        check(self.fpf, args, named.get("model"))
        self.fpf.settle()
        self._training = self.fpf.processes.gather(uuid4().hex)[0]
        if state.global_step:
            self._load(args, state)
        elif self.tasks and self.fpf.step:
            self.fpf.boundary()
        self._seen = deque(maxlen=CALLS * args.gradient_accumulation_steps)
        self._watch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not self._seen:
            raise ValueError(
                f"the model was not called with {self.labels!r} in this step; name the argument that holds the labels: "
                "FPFCallback(fpf, labels=...). With compute_loss_func the Trainer keeps the labels from the model: "
                "compute the loss in the model instead"
            )
        seen = list(self._seen)
        self._seen.clear()
        self._leave()  # the finetuning calls the model too
        try:
            self.fpf.observe(*joined(seen))
        finally:
            self._watch()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._leave()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert args.output_dir is not None, "a Trainer that writes checkpoints has a folder for them"
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"saved": self._saved(), "fpf": self.fpf.state_dict()}, folder / self._name())

    def state(self) -> dict[str, Any]:
        """What goes into the Trainer's own state, just before a save, in the process that writes it alone."""
        return {"args": {"fpf": None}, "attributes": {"saved": self._saved()}}

    def _saved(self) -> str:
        return f"{self._training}-{self.fpf.step}"

    def _watch(self) -> None:
        network = unwrap(self.fpf.model)
        for number, hook in list(network._forward_hooks.items()):
            if isinstance(getattr(hook, "__self__", None), FPFCallback):  # also of a training that was interrupted
                del network._forward_hooks[number]
                network._forward_hooks_with_kwargs.pop(number, None)
        self._hook = network.register_forward_hook(self._take, with_kwargs=True)

    def _leave(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _take(self, model: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
        labels = named.get(self.labels)
        if not model.training or not isinstance(labels, Tensor):
            return
        tensors = {n: value.detach() for n, value in named.items() if n != self.labels and isinstance(value, Tensor)}
        if self._columns is None:
            from_labels = hasattr(model, "prepare_decoder_input_ids_from_labels")
            if from_labels and "decoder_input_ids" not in tensors and self.fpf.forward is call:
                raise ValueError(
                    f"{type(model).__name__} makes its decoder's inputs from the labels, without which a repair calls "
                    "it: put decoder_input_ids into the batches, as DataCollatorForSeq2Seq(tokenizer, model=model) does"
                )
            self._columns = {name for name, value in tensors.items() if value.ndim and len(value) == len(labels)}
            if shared := [name for name, value in tensors.items() if value.ndim and name not in self._columns]:
                warnings.warn(
                    f"{', '.join(shared)}: not one row for each example, so the buffer does not hold it and a repair "
                    "calls the network without it; FPF(forward=…) can add it",
                    stacklevel=2,
                )
        inputs = {name: value for name, value in tensors.items() if name in self._columns}
        logits = output.get("logits") if isinstance(output, Mapping) else None
        self._seen.append((inputs, labels.detach(), None if logits is None else logits.detach()))

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Training goes on from the checkpoint of this step."""
        given = self.checkpoint or args.resume_from_checkpoint
        folder = Path(given) if isinstance(given, str | Path) else None
        file = (folder or Path(str(args.output_dir)) / f"checkpoint-{state.global_step}") / self._name()
        where = "name the checkpoint's folder: FPFCallback(fpf, checkpoint=...)"
        if not file.exists():
            raise FileNotFoundError(
                f"{file} is missing: the checkpoint was written without FPFCallback, or is elsewhere; then {where}"
            )
        read = torch.load(file, map_location="cpu", weights_only=True)
        own = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("saved")
        if read["saved"] != own:
            raise ValueError(f"{file} is not of the checkpoint that training goes on from; {where}")
        self.fpf.load_state_dict(read["fpf"])

    def _name(self) -> str:
        return f"forgetless{self.fpf.processes.rank or ''}.pt"


def check(fpf: FPF, args: TrainingArguments, model: nn.Module | None) -> None:
    """Refuse what would go wrong in or after the first step."""
    if model is not None and unwrap(model) is not unwrap(fpf.model):
        raise ValueError("fpf is around another model than the Trainer's: make FPF(model) of that one")
    if args.n_gpu > 1:
        raise ValueError(
            f"the Trainer shares each batch out to {args.n_gpu} GPUs in one process; start one process a GPU instead: "
            "torchrun --nproc-per-node ..."
        )
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor is {args.label_smoothing_factor}, with which the Trainer keeps the labels from "
            "the model; smooth them in the model's own loss instead"
        )
    if args.fp16:
        raise ValueError("fp16 is on, in which finetuning would need a gradient scaler; use bf16")
