"""A finetuning of chosen tensors of a network on a buffer, step by step.

Zhao et al. (2023), Algorithms 1 and 2: a new SGD without momentum, cosine annealing from ``lr`` to 0, and batches of 32
drawn from the buffer without replacement. ``objective`` holds the loss.

Batch norm: chosen weights and biases take gradients. Where the running statistics are chosen, those layers run in
training mode and update them; otherwise the layers run in evaluation mode and the statistics stay. Exactly the chosen
tensors move (with chosen statistics, their counter of batches moves too).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine, wake_autograd
from forgetless.compute.modules import uncompiled, unwrap, without_reducer
from forgetless.compute.shards import compute_device, is_sharded, shard
from forgetless.memory.batch import role
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.memory.labels import class_labels
from forgetless.memory.ragged import pass_size
from forgetless.networks.mlp import backpropagates
from forgetless.repair.descent import Descent, Optimizer, Schedule
from forgetless.repair.freezing import finetuning_modes, unfrozen
from forgetless.repair.gradients import NO_GRADIENT, Gradients, clipped, dense
from forgetless.repair.non_finite import explain, first_infinite, norm
from forgetless.repair.objective import Objective
from forgetless.repair.restoring import Restorer, all_tensors


@dataclass(frozen=True)
class Finetuned:
    """What a finetuning did: its losses, one per step, and the tensors it moved."""

    losses: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.losses)


@final
class Finetuning:
    """A finetuning: ``advance`` until ``left`` is 0, then ``finish``.

    With the ``engine`` of a GPU, rates, step number and losses are on the device (``Schedule``), so that it can capture
    the steps. After the first ``restart``, it also captures what comes before and after them.
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
        processes: Processes = ALONE,
    ) -> None:
        _check_buffer(buffer, descent.distill)
        self._model, self._network, self._buffer = without_reducer(model), unwrap(model), buffer
        self._objective, self._generator = objective, generator
        self._sharded = is_sharded(self._network)
        self._engine, self._processes = engine, Processes() if self._sharded and processes is ALONE else processes
        self.names = unfrozen(self._network, names)
        self._gradients: Gradients  # of the present ``advance``
        self._batch = pass_size({name: buffer[name] for name in buffer.columns}, descent.batch)
        self._device = compute_device(self._network)
        self._saved = Restorer(self._network, self.names, host=engine is None)  # an engine must not wait for copies
        self._restarted = False
        self._moves_all = set(dict(self._network.named_parameters())) <= set(self.names)
        with torch.inference_mode(False):
            self._norm = torch.zeros((), device=self._device)  # the norm of what moved, at the end: is it finite?
        if engine is None and self._device.type == "cuda":
            wake_autograd(self._device)
        self._begin(descent)

    def restart(self, descent: Descent) -> Finetuning:
        """Begin again, from the present weights and with other rates, once ``finish`` was called."""
        self._restarted = True
        self._begin(descent)
        self._call("begin", self._saved.renew)
        return self

    def advance(self, count: int) -> None:
        """Take up to ``count`` more steps. If one fails, restore the network as it was before the first."""
        engine = self._engine
        if len(self._buffer) < self._buffer.capacity:
            engine = None  # a graph of a buffer that still fills would soon be of no use
        replays = engine is not None and engine.replays(self._key)
        training: AbstractContextManager[list[nn.Parameter]] = nullcontext([]) if replays else self._training()
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            self._others_cast_once(),
            training as parameters,
        ):
            step = partial(self._step, parameters)
            try:
                for _ in range(min(count, self.left)):
                    if engine is None:
                        step()
                    else:
                        engine.call(self._key, step)
                    self.left -= 1
                if not self.left:
                    self._call("end", self._restore_and_measure)
            except BaseException:  # Ctrl-C too
                self._saved.restore()
                raise

    @property
    def drawn(self) -> int:
        """The number of examples that a step draws, in all processes together."""
        stored = len(self._buffer)
        available = stored - -(-stored // HELD_OUT) if self._descent.spare else stored
        return sum(self._processes.gather(min(self._batch, available)))

    def finish(self) -> Finetuned:
        """Return the outcome, or restore the network and raise ``NonFiniteError``. Synchronises with the GPU."""
        self._optimizer.forget()  # frees memory before the network is measured
        try:
            losses = self.losses()
            self._average_statistics()
            self._check_finite(losses)
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
        now, before = self._saved.present(self.names), self._saved.moving
        return {name: tensor.detach() - before[name].to(tensor.device) for name, tensor in now.items()}

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
        if not self.left:
            self._restore_and_measure()

    @contextmanager
    def _training(self) -> Iterator[list[nn.Parameter]]:
        """Let the network run as in a finetuning inside a ``with`` block; a replay does not need that."""
        with uncompiled(), finetuning_modes(self._model, self.names) as parameters:
            self._gradients = Gradients(self._network)
            try:
                yield parameters
            finally:
                torch.clear_autocast_cache()

    def _others_cast_once(self) -> AbstractContextManager[None]:
        """In bf16, cast the weights that do not move once for all steps."""
        if self._engine is None or self._moves_all:
            return nullcontext()
        return self._engine.others_cast_once(self._network, self.names)

    def _call(self, part: str, function: Callable[[], None]) -> None:
        """Run what comes before or after the steps; after a restart it is captured, since its tensors stay then."""
        if self._engine is not None and self._restarted:
            self._engine.call(("finetune", part, *self._key[1:-1]), function)
        else:
            function()

    @torch.no_grad()
    def _restore_and_measure(self) -> None:
        """Put back what the forward passes wrote to but was not chosen, and measure the rest."""
        self._saved.restore_still()
        self._norm.copy_(norm(self._saved.present(self.names).values()))

    def _begin(self, descent: Descent) -> None:
        """Prepare what depends on the steps and their rates."""
        self._descent, self._optimizer = descent, Optimizer(descent)
        self.steps = self.left = descent.steps
        self._key = ("finetune", self.names, len(self._buffer), replace(descent, rates=()), self.steps)
        self._schedule: Schedule | None = None
        if self._engine is not None and self._engine.cuda:
            self._use(self._engine.persistent(self._key, lambda: Schedule(self.steps, self._device)))
        else:
            with torch.inference_mode(False):
                self._losses = torch.zeros(self.steps, device=self._device)

    def _use(self, schedule: Schedule) -> None:
        self._schedule, self._losses = schedule, schedule.losses
        self._optimizer.use(schedule)

    def _step(self, parameters: list[nn.Parameter]) -> None:
        torch.clear_autocast_cache()  # inside a user's autocast it would hold the weights of the first step
        step = self.steps - self.left
        drawn = self._buffer.draw(self._batch, self._generator, spare_held_out=self._descent.spare)
        rows = {name: column.to(self._device) for name, column in drawn.items()}
        value, gradients = self._differentiate(step, rows, parameters)
        targets = [shard(parameter) for parameter in parameters] if self._sharded else parameters
        if self._processes.count > 1:
            examples = self._objective.examples(rows, self._descent.distill)
            # Those of shards were exchanged by backward().
            exchanged = [] if self._sharded else dense(parameters, gradients)
            value, *means = self._processes.mean_over_examples([value, *exchanged], examples)
            gradients = means or gradients
        if self._descent.optimizer == "adam":
            gradients = dense(targets, gradients)  # its averages are of the same parameters in every step
        if self._descent.clip is not None:
            holders = self._processes if self._sharded else ALONE
            gradients = clipped(parameters, dense(targets, gradients), self._descent.clip, holders)
        pairs = [(p, g) for p, g in zip(targets, gradients, strict=bool(gradients)) if g is not None]
        with torch.no_grad():
            if pairs:
                self._optimizer.update([p for p, _ in pairs], [g for _, g in pairs], step)
            if self._schedule is None:
                self._losses[step] = value.detach()
            else:
                self._schedule.record(value.detach())

    def _differentiate(
        self, step: int, rows: Mapping[str, Tensor], parameters: list[nn.Parameter]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss and its gradient for each parameter; no gradients if only statistics are finetuned."""
        objective, distill = self._objective, self._descent.distill
        engine = self._engine if objective.loss is None and not distill else None
        with objective.cast(self._device):
            inputs = objective.inputs(rows)
            if step and engine is not None and backpropagates(self._network, engine):
                value, _, mlp_gradients = self._network.backpropagate(inputs, class_labels(rows["y"]), parameters)
                return value, mlp_gradients
            output = self._output(inputs, rows)
            if step == 0 and (self._schedule is None or not self._schedule.checked):
                stored = {name: self._buffer[name] for name in self._buffer.columns}
                objective.check(stored, output, rows, distill)
            value = objective.value(output, rows, distill)
        if not parameters:
            return value, ()
        scale = self._optimizer.scale()
        if self._sharded:
            scale = self._processes.weight(objective.examples(rows, distill), self._device)
        gradients = self._gradients.differentiate(value, parameters, scale)
        if all(gradient is None for gradient in gradients):
            raise ValueError(NO_GRADIENT)
        return value, gradients

    def _output(self, inputs: Any, rows: Mapping[str, Tensor]) -> Any:
        """Return the network's output, or raise ``ValueError`` if the batch is too small for batch norm."""
        try:
            return self._objective.output(self._model, inputs, rows)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                f"batch norm needs at least 2 examples per batch: draw more (batch is {self._descent.batch}, the "
                f"buffer holds {len(self._buffer)}), or leave its statistics out of what is finetuned"
            ) from error

    def _check_finite(self, losses: list[float]) -> None:
        """Raise ``NonFiniteError`` if a loss or a tensor is not finite, in any process."""
        if self._processes.count == 1 and math.isfinite(sum(losses) + self._norm.item()):
            return
        problem = first_infinite(losses, self._saved.present(self.names))
        if self._sharded:  # maybe only the shard of another process is not finite
            problem = next(filter(None, self._processes.gather(problem)), "")
        if problem:
            before = all_tensors(self._network) | self._saved.still | self._saved.moving
            raise explain(problem, before, self._buffer)

    def _average_statistics(self) -> None:
        """Average the finetuned running statistics, which saw different examples in each process."""
        if self._processes.count == 1:
            return
        moving = self._saved.moving
        floats = [buffer for n, buffer in self._network.named_buffers() if n in moving and buffer.is_floating_point()]
        if floats:
            for buffer, mean in zip(floats, self._processes.mean_over_examples(floats, 1), strict=True):
                buffer.copy_(mean)


def _check_buffer(buffer: Buffer, distill: float) -> None:
    """Raise ``ValueError`` if the buffer does not hold what a finetuning needs."""
    present = set(map(role, buffer.columns))
    for column in ("x", "y", "logits") if distill else ("x", "y"):
        if column not in present:
            what = f"distill is {distill}, which" if column == "logits" else "finetuning"
            raise ValueError(f"{what} needs the column {column!r}; the buffer has {', '.join(buffer.columns)}")
