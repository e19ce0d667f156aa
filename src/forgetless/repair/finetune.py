"""Finetune chosen tensors of a network on a buffer, and nothing else.

Zhao et al. (2023), Algorithms 1 and 2: a new SGD without momentum, cosine annealing from ``lr`` to 0, and batches of 32
drawn from the buffer without replacement. ``objective`` holds the loss.

Batch norm: chosen weights and biases take gradients. Where the running statistics are chosen, those layers run in
training mode and update them; otherwise the layers run in evaluation mode and the statistics stay. Exactly the chosen
tensors move (with chosen statistics, their counter of batches moves too).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import Engine, wake_autograd
from forgetless.compute.modules import uncompiled, unwrap, without_reducer
from forgetless.compute.shards import compute_device, is_sharded, shard
from forgetless.networks.mlp import backpropagates
from forgetless.repair.batch import role
from forgetless.repair.buffer import HELD_OUT, Buffer
from forgetless.repair.descent import Averages, Descent
from forgetless.repair.freezing import finetuning_modes, unfrozen
from forgetless.repair.gradients import NO_GRADIENT, Gradients, clipped
from forgetless.repair.labels import class_labels, with_labels
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, shifts_labels
from forgetless.repair.ragged import pass_size
from forgetless.repair.restoring import Restorer, all_tensors, untouched_randomness
from forgetless.repair.settings import LR, STEPS, Finetune


class NonFiniteError(FloatingPointError, RuntimeError):
    """A loss or a weight became infinite or NaN. After a finetuning the network is as it was before it."""


@dataclass(frozen=True)
class Finetuned:
    """What a finetuning did: its losses, one per step, and the tensors it moved."""

    losses: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.losses)


def finetune(
    model: nn.Module,
    buffer: Buffer,
    names: Collection[str],
    steps: int = STEPS,
    lr: float = LR,
    distill: float = Finetune.distill,
    *,
    batch: int = Finetune.batch,
    augment: Augment | None = None,
    loss: Loss | None = None,
    forward: Forward = call,
    autocast: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    processes: Processes | None = None,
) -> Finetuned:
    """Finetune the tensors ``names`` of ``model`` on ``buffer``, and nothing else.

    The user's gradients, optimizer, ``requires_grad`` flags, train/eval modes and random states stay as they are. A
    parameter with ``requires_grad=False`` stays frozen. If the loss or a weight becomes infinite or NaN, the network is
    restored and ``NonFiniteError`` names the step. The GPU-to-CPU sync is once, at the end.

        >>> model, buffer = nn.Linear(4, 2), Buffer(8)
        >>> buffer.add({"x": torch.rand(8, 4), "y": torch.tensor([0, 1] * 4)})
        >>> finetune(model, buffer, ["bias"], steps=5).names
        ('bias',)

    Args:
        model: A network that returns logits.
        buffer: The examples, with the columns ``x`` (or ``x.<key>`` for keyword arguments), ``y`` (or ``y.<key>`` for
            several targets) and, to distil, ``logits``. Examples without a label are left out.
        names: The parameters and float buffers to move; see ``forgetless.groups``.
        steps: The number of steps.
        lr: The learning rate, annealed to 0 by a cosine.
        distill: λ of the term λ · MSE(stored logits, logits).
        batch: The number of examples drawn per step; fewer if these had more than 16,384 tokens.
        augment: Applied to the inputs drawn from the buffer.
        loss: ``(output, y) -> loss``, replaces cross-entropy; "model": the model's own loss.
        forward: ``(model, x) -> output``; with ``loss="model"``, ``(model, x, y) -> output``.
        autocast: The dtype of the forward pass.
        generator: Draws the batches. Default: the buffer's.
        processes: The processes that finetune the network together. Each draws its batch from its own buffer. An
            update is that of all batches together; running statistics are averaged over processes at the end.

    Returns:
        The losses and the tensors that moved.
    """
    names = [names] if isinstance(names, str) else list(names)
    descent = Descent.cosine(Finetune(steps=steps, lr=lr, distill=distill, batch=batch))
    objective = Objective(augment, loss, forward, autocast, shifts=shifts_labels(model))
    generator = generator or buffer.generator
    if generator is None or not len(buffer):
        raise ValueError("the buffer is empty: add examples first")
    buffer = with_labels(buffer)
    with untouched_randomness(generator):
        run = Finetuning(model, buffer, names, descent, objective, generator, processes=processes)
        run.advance(descent.steps)
        return run.finish()


@final
class Finetuning:
    """``finetune`` step by step: ``advance`` until ``left`` is 0, then ``finish``.

    With the ``engine`` of a GPU, rates, step number and losses are on the device, so that it can capture the steps.
    """

    def __init__(
        self,
        model: nn.Module,
        buffer: Buffer,
        names: Collection[str],
        descent: Descent,
        objective: Objective,
        generator: torch.Generator,
        engine: Engine | None = None,
        processes: Processes | None = None,
    ) -> None:
        _check_buffer(buffer, descent.distill)
        self._model, self._network, self._buffer = without_reducer(model), unwrap(model), buffer
        self._descent, self._objective, self._generator = descent, objective, generator
        self._sharded = is_sharded(self._network)
        self._engine, self._processes = engine, processes or (Processes() if self._sharded else None)
        self.names = unfrozen(self._network, names)
        self.steps = self.left = descent.steps
        self._rates = descent.multipliers
        self._averages: Averages | None = None
        self._gradients: Gradients  # of the present ``advance``
        self._batch = pass_size({name: buffer[name] for name in buffer.columns}, descent.batch)
        self._device = compute_device(self._network)
        self._saved = Restorer(self._network, self.names, host=engine is None)  # an engine must not wait for copies
        with torch.inference_mode(False):
            self._losses = torch.zeros(self.steps, device=self._device)
        self._key = ("finetune", self.names, len(buffer), replace(descent, rates=()), self.steps)
        self._schedule: Schedule | None = None
        if engine is None and self._device.type == "cuda":
            wake_autograd(self._device)
        if engine is not None and engine.cuda:
            self._use(engine.persistent(self._key, lambda: Schedule(self.steps, self._device)))

    def advance(self, count: int) -> None:
        """Take up to ``count`` more steps. If one fails, restore the network as it was before the first."""
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            uncompiled(),
            finetuning_modes(self._model, self.names) as parameters,
            nullcontext() if self._engine is None else self._engine.others_cast_once(self._network, self.names),
        ):
            self._gradients = Gradients(self._network)
            try:
                for _ in range(min(count, self.left)):
                    if self._engine is None or self._schedule is None:
                        self._step(parameters)
                    else:
                        self._engine.call(self._key, lambda: self._step(parameters))
                    self.left -= 1
            except BaseException:  # Ctrl-C too
                self._saved.restore()
                raise
            finally:
                torch.clear_autocast_cache()

    @property
    def drawn(self) -> int:
        """The number of examples that a step draws, in all processes."""
        stored = len(self._buffer)
        available = stored - -(-stored // HELD_OUT) if self._descent.spare else stored
        return min(self._batch, available) * (1 if self._processes is None else self._processes.count)

    def finish(self) -> Finetuned:
        """Return the outcome, or restore the network and raise ``NonFiniteError``. Synchronises with the GPU."""
        self._averages = None  # frees their memory before the network is measured
        try:
            losses = self.losses()
            self._average_statistics()
            self._check_finite(losses)
            self._saved.restore_still()
        except BaseException:  # Ctrl-C too
            self._saved.restore()
            raise
        return Finetuned(tuple(losses), tuple(self.names))

    def undo(self) -> None:
        """Put the network back as it was before the first step."""
        self._saved.restore()

    def losses(self) -> list[float]:
        """Return the losses of the steps taken. Synchronises with the GPU."""
        taken: list[float] = self._losses[: self.steps - self.left].tolist()
        return taken

    def moved(self) -> dict[str, Tensor]:
        """Return how far each tensor has moved since before the first step."""
        tensors = all_tensors(self._network)
        return {name: tensors[name].detach() - self._saved.moving[name].to(tensors[name].device) for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume, besides the network, the buffer and the random states."""
        return {"left": self.left, "losses": self._losses.clone(), **self._saved.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, in a finetuning of the same network with the same settings."""
        self.left = state["left"]
        self._losses.copy_(state["losses"])
        self._saved.load_state_dict(state)
        if self._schedule is not None:
            self._schedule.step.fill_(self.steps - self.left)

    def _use(self, schedule: Schedule) -> None:
        schedule.rates.copy_(torch.tensor(self._rates))
        schedule.step.zero_()
        self._schedule, self._losses = schedule, schedule.losses
        self._averages = schedule.averages
        if self._averages is not None:
            self._averages.reset()

    def _step(self, parameters: list[nn.Parameter]) -> None:
        torch.clear_autocast_cache()  # inside a user's autocast it would hold the weights of the first step
        step = self.steps - self.left
        drawn = self._buffer.draw(self._batch, self._generator, spare_held_out=self._descent.spare)
        rows = {name: column.to(self._device) for name, column in drawn.items()}
        value, gradients = self._differentiate(step, rows, parameters)
        targets = [shard(parameter) for parameter in parameters] if self._sharded else parameters
        if self._processes is not None and self._processes.count > 1:
            examples = self._objective.examples(rows, self._descent.distill)
            exchanged = [] if self._sharded else _dense(parameters, gradients)  # backward() exchanges those of shards
            value, *means = self._processes.mean_over_examples([value, *exchanged], examples)
            gradients = means or gradients
        if self._descent.optimizer == "adam":
            gradients = _dense(targets, gradients)  # its averages are of the same parameters in every step
        if self._descent.clip is not None:
            shared = self._processes if self._sharded else None
            gradients = clipped(parameters, _dense(targets, gradients), self._descent.clip, shared)
        pairs = [(p, g) for p, g in zip(targets, gradients, strict=bool(gradients)) if g is not None]
        with torch.no_grad():
            if pairs:
                self._descend([p for p, _ in pairs], [g for _, g in pairs], step)
            if self._schedule is None:
                self._losses[step] = value.detach()
            else:
                self._losses.index_copy_(0, self._schedule.step, value.detach().float().reshape(1))
                self._schedule.step.add_(1)
                self._schedule.checked = True

    def _descend(self, parameters: list[Tensor], gradients: list[Tensor], step: int) -> None:
        """Update the parameters. With a schedule, SGD's gradients have the rate already, which saves a pass."""
        if self._descent.optimizer == "sgd":
            rate = self._rates[step] if self._schedule is None else 1
            torch._foreach_add_(parameters, gradients, alpha=-rate)
            return
        if self._averages is None:
            self._averages = Averages(parameters)
            if self._schedule is not None:
                self._schedule.averages = self._averages  # the captured step updates these tensors
        for part, directions in self._averages.update(gradients):
            if self._schedule is None:
                torch._foreach_add_(parameters[part], directions, alpha=-self._rates[step])
            else:
                torch._foreach_mul_(directions, self._schedule.rate())
                torch._foreach_add_(parameters[part], directions, alpha=-1)

    def _differentiate(
        self, step: int, rows: Mapping[str, Tensor], parameters: list[nn.Parameter]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss and its gradient for each parameter; no gradients if only statistics are finetuned."""
        objective, distill = self._objective, self._descent.distill
        engine = self._engine if objective.loss is None and not distill else None
        with objective.cast(self._device):
            inputs = objective.inputs(rows)
            if step and engine is not None and backpropagates(self._network, engine):
                value, _, gradients = self._network.backpropagate(inputs, class_labels(rows["y"]), parameters)
                return value, gradients
            try:
                output = objective.output(self._model, inputs, rows)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ValueError(
                    f"batch norm needs at least 2 examples per batch: draw more (batch is {self._descent.batch}, the "
                    f"buffer holds {len(self._buffer)}), or leave its statistics out of what is finetuned"
                ) from error
            if step == 0 and (self._schedule is None or not self._schedule.checked):
                held = {name: self._buffer[name] for name in self._buffer.columns}
                objective.check(held, output, rows, distill)
            value = objective.value(output, rows, distill)
        if not parameters:
            return value, ()
        scaled = self._schedule is not None and self._descent.optimizer == "sgd"
        rate = self._schedule.rate() if self._schedule is not None and scaled else None
        if self._sharded and self._processes is not None:
            rate = self._processes.weight(objective.examples(rows, distill), self._device)
        found = self._gradients.of(value, parameters, rate)
        if all(gradient is None for gradient in found):
            raise ValueError(NO_GRADIENT)
        return value, found

    def _check_finite(self, losses: list[float]) -> None:
        """Raise ``NonFiniteError`` if a loss or a tensor is not finite, with the reason if one shows."""
        tensors = all_tensors(self._network)
        bad = _first_infinite(losses, {name: tensors[name] for name in self.names})
        if self._sharded and self._processes is not None:  # maybe only the shard of another process is not finite
            bad = next(filter(None, self._processes.gather(bad)), "")
        if not bad:
            return
        before = all_tensors(self._network) | self._saved.still | self._saved.moving
        if held := [name for name, tensor in before.items() if bool(tensor.isnan().any())]:
            raise NonFiniteError(
                f"the network already holds NaN, in {held[0]}, before the finetuning: try a smaller learning rate in "
                "training"
            )
        raise NonFiniteError(f"{bad} of the finetuning; the network is as it was before it. {_advice(self._buffer)}")

    def _average_statistics(self) -> None:
        """Average the finetuned running statistics, which saw different examples in each process."""
        if self._processes is None:
            return
        for name, tensor in self._network.named_buffers():
            if name in self._saved.moving and tensor.is_floating_point():
                tensor.copy_(self._processes.mean(tensor))


@final
class Schedule:
    """The learning rate of each step, the step and the losses, on the device, for steps that are replayed."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.rates = torch.zeros(steps, device=device)
        self.losses = torch.zeros(steps, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.checked = False  # whether a first step was taken, so that a batch is known to fit the network
        self.averages: Averages | None = None

    def rate(self) -> Tensor:
        """Return the rate of the present step."""
        return self.rates.index_select(0, self.step)[0]


def _dense(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return one dense gradient per parameter, zeros where there is none."""
    dense = [g.to_dense() if g is not None and g.is_sparse else g for g in gradients or [None] * len(parameters)]
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, dense, strict=True)]


def _check_buffer(buffer: Buffer, distill: float) -> None:
    """Raise ``ValueError`` if the buffer does not hold what a finetuning needs."""
    held = set(map(role, buffer.columns))
    missing = [column for column in ("x", "y", "logits") if column not in held and (distill or column != "logits")]
    if missing:
        what = f"distill is {distill}, which" if missing == ["logits"] else "finetuning"
        raise ValueError(f"{what} needs the column {missing[0]!r}; the buffer has {', '.join(buffer.columns)}")


def _first_infinite(losses: list[float], tensors: Mapping[str, Tensor]) -> str:
    """Return which loss or else which tensor is not finite, in words; "" if all are."""
    steps = len(losses)
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            return f"the loss became {loss} at step {step} of {steps}"
    device = next(iter(tensors.values())).device  # a network may be on several
    finite = torch.stack([tensor.isfinite().all().to(device) for tensor in tensors.values()]).tolist()
    names = [name for name, is_finite in zip(tensors, finite, strict=True) if not is_finite]
    return f"{names[0]} became infinite or NaN at the last of {steps} steps" if names else ""


def _advice(buffer: Buffer) -> str:
    rows = {name: buffer[name].reshape(len(buffer), -1) for name in buffer.columns}
    bad = {name: int((~column.isfinite().all(1)).sum()) for name, column in rows.items()}
    if listed := ", ".join(f"{count} of its {len(buffer)} rows of {name}" for name, count in bad.items() if count):
        return f"The buffer holds NaN or infinity: {listed}"
    return "Try a smaller lr of the finetuning (in a run: ft_lr)"
