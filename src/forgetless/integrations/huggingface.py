"""FPF and k-FPF as a callback of Hugging Face's Trainer, and of trainers derived from it, such as TRL's SFTTrainer.

    fpf = FPF(model, capacity=200, every=50)
    for task in tasks:
        Trainer(model, args, train_dataset=task, callbacks=[FPFCallback(fpf)]).train()
    fpf.finish()

A trainer that puts adapters around the model (``SFTTrainer(peft_config=...)``) comes first:

    trainer = SFTTrainer(model, args, train_dataset=task, peft_config=LoraConfig())
    fpf = FPF(trainer.model, capacity=200)
    trainer.add_callback(FPFCallback(fpf))

A Trainer does not show its callbacks the batches. So while it trains, a forward hook on the model collects them: the
tensors that the model is called with, ``labels`` among them, and the logits. The callback observes them after every
optimiser step. Each ``train()`` is a task. The Trainer's checkpoints include the state of ``fpf`` as ``forgetless.pt``
(``forgetless1.pt``, … for the other processes), and training resumes from it; reading it executes no code.

Sequences of tokens may differ in length, and packed ones become examples of their own. Other inputs have one shape.
Inputs without one row per example are not stored.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final
from uuid import uuid4
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from forgetless.compute.modules import unwrap
from forgetless.fpf import FPF
from forgetless.integrations.batches import Observation, joined
from forgetless.memory.batch import VARLEN
from forgetless.repair.objective import call

HOOKS: WeakKeyDictionary[nn.Module, RemovableHandle] = WeakKeyDictionary()  # those that collect batches
CALLS = 64  # forward passes kept per batch; a model that is called after an interrupt must not fill the memory


@final
class FPFCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Observe each optimiser step of a Trainer.

    Args:
        fpf: An ``FPF`` around the model.
        labels: The argument of the model that holds the labels.
        tasks: Whether each ``train()`` after the first begins a new task. If not, ``fpf`` detects the shifts.
        checkpoint: The folder of the checkpoint to resume from, if it is not in the Trainer's ``output_dir``.
    """

    def __init__(
        self, fpf: FPF, labels: str = "labels", *, tasks: bool = True, checkpoint: str | Path | None = None
    ) -> None:
        if not isinstance(fpf, FPF):
            raise ValueError(
                f"fpf is {fpf!r}; it must be a forgetless.FPF. A Trainer with restore_callback_states_from_checkpoint "
                "makes new callbacks without one: leave that off, the state is read from the checkpoint anyway"
            )
        self.fpf, self.labels, self.tasks, self.checkpoint = fpf, labels, tasks, checkpoint
        self._training = ""  # identifies this training in its checkpoints; the same in all processes
        self._batches: deque[Observation] = deque(maxlen=CALLS)  # since the last optimiser step
        self._columns: set[str] | None = None  # the inputs that are stored, decided by the first batch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        """Resume from a checkpoint or begin a task, and start to collect batches."""
        check(self.fpf, args, named.get("model"))
        self.fpf.settle()
        self._training = self.fpf.processes.gather(uuid4().hex)[0]
        if state.global_step:
            self._load(args, state)
        elif self.tasks and self.fpf.step:
            self.fpf.boundary()
        self._batches = deque(maxlen=CALLS * args.gradient_accumulation_steps)
        network = unwrap(self.fpf.model)
        if network in HOOKS:  # left by a training that was interrupted
            HOOKS[network].remove()
        HOOKS[network] = network.register_forward_hook(self._collect, with_kwargs=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Observe the batches of this optimiser step."""
        if not self._batches:
            raise ValueError(
                f"the model was not called with {self.labels!r} in this step; name the argument that holds the labels: "
                "FPFCallback(fpf, labels=...). With compute_loss_func the Trainer does not pass the labels to the "
                "model: compute the loss in the model instead"
            )
        batch = joined(self._batches)
        self._batches.clear()
        self.fpf.observe(*batch)
        self._batches.clear()  # the finetuning calls the model too

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop collecting batches."""
        HOOKS.pop(unwrap(self.fpf.model)).remove()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the state of this process into the checkpoint."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"saved": self._save_id(), "fpf": self.fpf.state_dict()}, folder / self._file_name())

    def state(self) -> dict[str, Any]:
        """Return what the Trainer stores in its own state, by which the files of one save are recognised."""
        return {"args": {"fpf": None}, "attributes": {"saved": self._save_id()}}

    def _save_id(self) -> str:
        return f"{self._training}-{self.fpf.step}"

    def _collect(self, model: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
        labels = named.get(self.labels)
        if not model.training or not isinstance(labels, Tensor):
            return
        tensors = {n: value.detach() for n, value in named.items() if n != self.labels and isinstance(value, Tensor)}
        if self._columns is None:
            from_labels = hasattr(model, "prepare_decoder_input_ids_from_labels")
            unlabelled = self.fpf.objective.forward is call and self.fpf.objective.loss != "model"
            if from_labels and "decoder_input_ids" not in tensors and unlabelled:
                raise ValueError(
                    f"{type(model).__name__} makes its decoder's inputs from the labels, but a repair calls it without "
                    "them: add decoder_input_ids to the batches, as DataCollatorForSeq2Seq(tokenizer, model=model) does"
                )
            self._columns = {name for name, value in tensors.items() if value.ndim and len(value) == len(labels)}
            shared = [name for name, value in tensors.items() if value.ndim and name not in self._columns]
            if shared := [name for name in shared if name not in VARLEN]:
                warnings.warn(
                    f"{', '.join(shared)}: not one row per example, so the buffer does not store it and a repair calls "
                    "the network without it; FPF(forward=…) can add it",
                    stacklevel=2,
                )
        inputs = {name: value for name, value in tensors.items() if name in self._columns}
        keeps_logits = self.fpf.settings.distill or labels.ndim == 1  # those of tokens take much memory
        logits = output.get("logits") if isinstance(output, Mapping) and keeps_logits else None
        self._batches.append((inputs, labels.detach(), None if logits is None else logits.detach()))

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Load the state from the checkpoint that training resumes from."""
        given = self.checkpoint or args.resume_from_checkpoint
        folder = Path(given) if isinstance(given, str | Path) else None
        file = (folder or Path(str(args.output_dir)) / f"checkpoint-{state.global_step}") / self._file_name()
        advice = "pass the checkpoint's folder: FPFCallback(fpf, checkpoint=...)"
        if not file.exists():
            raise FileNotFoundError(
                f"{file} is missing; if the checkpoint was written with FPFCallback, {advice}. A training that ran "
                "without it cannot be resumed with it: train from the checkpoint's weights, without "
                "resume_from_checkpoint"
            )
        saved = torch.load(file, map_location="cpu", weights_only=True)
        exported = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        if saved["saved"] != exported.get("saved"):
            raise ValueError(f"{file} does not belong to the checkpoint that training resumes from; {advice}")
        self.fpf.load_state_dict(saved["fpf"])

    def _file_name(self) -> str:
        return f"forgetless{self.fpf.processes.rank or ''}.pt"


def check(fpf: FPF, args: TrainingArguments, model: nn.Module | None) -> None:
    """Raise ``ValueError`` for a Trainer that FPF cannot follow."""
    if model is not None and unwrap(model) is not unwrap(fpf.model):
        raise ValueError("fpf is around another model than the Trainer's: make FPF(model) from that one")
    if args.n_gpu > 1:
        raise ValueError(
            f"the Trainer splits each batch over {args.n_gpu} GPUs in one process; start one process per GPU instead: "
            "torchrun --nproc-per-node ..."
        )
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor is {args.label_smoothing_factor}, with which the Trainer does not pass the labels "
            "to the model; smooth them in the model's loss instead"
        )
    if args.fp16:
        raise ValueError("fp16 is on, for which finetuning has no gradient scaler; use bf16")
