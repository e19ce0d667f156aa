"""Finetune chosen tensors of a network on a buffer, and nothing else.

Zhao et al. (2023), Algorithms 1 and 2: a fresh SGD without momentum, cosine annealing from ``lr`` to 0, batches of 32
drawn from the buffer without replacement. The loss is cross-entropy, or with ``distill`` = λ > 0 (k-FPF-KD)

    CE(y, f(x)) + λ · MSE(z, f(x)),   z the logits stored with x.

Batch norm: chosen weights and biases take gradients. Where the running statistics are chosen, those layers run in
training mode and update them; where they are not, the layers run in evaluation mode and the statistics stay. Exactly
the chosen tensors move (with chosen statistics, their counter of batches moves too).
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import Engine, wake_autograd
from forgetless.compute.modules import joined, unwrap, without_reducer
from forgetless.networks.mlp import backpropagates
from forgetless.repair.buffer import Buffer
from forgetless.repair.groups import float_tensors, groups, statistics
from forgetless.repair.settings import Finetune

Loss = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[nn.Module, Any], Tensor]
Augment = Callable[[Any], Any]


OTHER = ". If you train with another loss than cross-entropy, give it: loss=…"


class NonFiniteError(FloatingPointError, RuntimeError):
    """The loss or the weights became infinite or NaN; after a finetuning the network was put back as it was before."""


@dataclass(frozen=True)
class Finetuned:
    """What a finetuning did: its losses, one a step, and the tensors it moved."""

    losses: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def steps(self) -> int:
        return len(self.losses)


def call(model: nn.Module, x: Any) -> Tensor:
    """Logits of ``model`` for ``x``: a tensor, or a mapping that becomes keyword arguments (Hugging Face's batches)."""
    try:
        output = model(**x) if isinstance(x, Mapping) else model(x)
    except TypeError:
        if isinstance(x, Mapping):
            check_arguments(model, x)
        raise
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the network returned {type(output).__name__}, not a tensor of logits: give forward=(model, x) -> logits"
        )
    return output


def check_arguments(model: nn.Module, x: Mapping[str, Any]) -> None:
    """An error if the network does not take these by name."""
    network = unwrap(model)
    if network._forward_pre_hooks:  # which may change them
        return
    try:
        inspect.signature(network.forward).bind(**x)
    except TypeError as error:
        raise TypeError(
            f"x is a mapping, so that the network is called with {', '.join(x)} by name: {error}. If it takes the "
            "mapping itself, give forward=lambda model, x: model(x)"
        ) from None
    except ValueError:  # what is built in has no signature
        pass


@contextmanager
def only(model: nn.Module, names: Collection[str]) -> Iterator[list[nn.Parameter]]:
    """Within: exactly the parameters in ``names`` take gradients, exactly the statistics in ``names`` are updated.

    Gives those parameters. The network runs in training mode (dropout is active). Where it is in training mode already,
    its parts keep their modes; otherwise what is frozen as a whole stays in evaluation mode. On leaving, every
    ``requires_grad`` flag and train/eval mode is as it was.
    """
    network = unwrap(model)
    chosen = set(names)
    parameters = dict(network.named_parameters())
    check_names(network, chosen)
    flags = {name: parameter.requires_grad for name, parameter in parameters.items()}
    modes = [(module, module.training) for module in model.modules()]
    try:
        if not network.training:
            model.train()
            for module in network.modules():
                if _is_frozen(module):
                    module.eval()
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in chosen)
        for path, module in network.named_modules():
            own = statistics(path, module)
            if own:
                module.training = own <= chosen
        yield [parameter for name, parameter in parameters.items() if name in chosen]
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(flags[name])
        for module, mode in modes:
            module.training = mode


def finetune(
    model: nn.Module,
    buffer: Buffer,
    names: Collection[str],
    steps: int = Finetune.steps,
    lr: float = Finetune.lr,
    distill: float = 0.0,
    *,
    batch: int = 32,
    augment: Augment | None = None,
    loss: Loss | None = None,
    forward: Forward = call,
    autocast: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    processes: Processes | None = None,
) -> Finetuned:
    """Finetune the tensors ``names`` of ``model`` on ``buffer`` (columns ``x`` or ``x.<key>``, ``y``, ``logits``).

    ``augment`` is applied to the drawn ``x``, ``loss(logits, y)`` takes the place of cross-entropy, ``autocast`` runs
    the forward pass in that dtype, ``generator`` draws (default: the buffer's own). Gradients of the user's
    (``.grad``), the optimiser, ``requires_grad`` flags, train/eval modes and random states are left as found. If the
    loss or a weight becomes infinite or NaN, the network is put back as it was and ``NonFiniteError`` names the step.
    A parameter with ``requires_grad=False`` on entry stays frozen. Not for networks with reentrant activation
    checkpointing, which torch's ``autograd.grad`` refuses. The host reads the losses once, at the end.

    Several ``processes`` finetune one network in step: each draws its part of ``batch`` from a buffer of its own, an
    update is that of all drawn together, and running statistics become the mean over processes at the end.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not isinstance(buffer, Buffer):
        raise ValueError(f"buffer is a {type(buffer).__name__}; it must be a forgetless.Buffer")
    generator = generator or buffer.generator
    with untouched_randomness(generator):
        run = Finetuning(
            model, buffer, names, steps, lr, distill, batch=batch, augment=augment, loss=loss, forward=forward,
            autocast=autocast, generator=generator, processes=processes,
        )  # fmt: skip
        run.advance(steps)
        return run.finish()


class Finetuning:
    """``finetune`` step by step: ``advance`` until ``left`` is 0, then ``finish``. Arguments as there.

    With an ``engine`` of a GPU the learning rates, the number of the step and the losses are on the device, and the
    steps are captured if it captures. Between two calls the network is in the modes, and takes the gradients, that it
    had before.
    """

    def __init__(
        self,
        model: nn.Module,
        buffer: Buffer,
        names: Collection[str],
        steps: int,
        lr: float,
        distill: float,
        *,
        batch: int,
        augment: Augment | None,
        loss: Loss | None = None,
        forward: Forward = call,
        autocast: torch.dtype | None = None,
        generator: torch.Generator,
        engine: Engine | None = None,
        processes: Processes | None = None,
    ) -> None:
        Finetune(steps=steps, lr=lr, distill=distill, batch=batch)  # raises an error for one out of its range
        check_autocast(autocast)
        check_functions(augment=augment, loss=loss, forward=forward)
        check_buffer(buffer, distill)
        self._model, self._buffer, self._lr, self._distill = without_reducer(model), buffer, lr, distill
        self._processes = processes
        self._batch, self._augment, self._loss, self._forward = batch, augment, loss, forward
        self._autocast, self._generator, self._engine = autocast, generator, engine
        self._network = unwrap(model)
        self.names = unfrozen(self._network, names)
        self.steps = self.left = steps
        self._device = next(self._network.parameters()).device
        with torch.inference_mode(False):
            self._before = {n: tensor.detach().clone() for n, tensor in _moving(self._network, self.names).items()}
            self._still = {n: t.clone() for n, t in _written(self._network).items() if n not in self._before}
            self._losses = torch.zeros(steps, device=self._device)
        self._unset = [(m, name) for m in self._network.modules() for name, b in m._buffers.items() if b is None]
        self._key = ("finetune", self.names, len(buffer), batch, steps, distill)
        self._schedule = None
        if engine is None and self._device.type == "cuda":
            wake_autograd(self._device)
        if engine is not None and engine.cuda:
            self._schedule = engine.persistent(self._key, lambda: _Schedule(steps, self._device))
            self._schedule.begin([self._rate(step) for step in range(steps)])
            self._losses = self._schedule.losses

    def advance(self, count: int) -> None:
        """So many steps more, or as many as are left; if one fails, the network is put back as it was before all."""
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            _eager(),
            only(self._model, self.names) as parameters,
            nullcontext() if self._engine is None else self._engine.frozen_cast_once(self._network),
        ):
            try:
                for _ in range(min(count, self.left)):
                    if self._engine is None or self._schedule is None:
                        self._step(parameters)
                    else:
                        self._engine.call(self._key, lambda: self._step(parameters))
                    self.left -= 1
            except BaseException:
                self._put_back()
                raise
            finally:
                torch.clear_autocast_cache()

    def finish(self) -> Finetuned:
        """What was done. After an error, ``NonFiniteError`` if a loss or weight is not finite, all is as it was."""
        try:
            losses = self._losses.tolist()
            self._agree_on_statistics()
            now = _tensors(self._network)
            _check_finite(losses, {name: now[name] for name in self.names}, self._buffer)
            self._put_into(self._still)
        except BaseException:  # Ctrl-C too
            self._put_back()
            raise
        return Finetuned(tuple(losses), tuple(self.names))

    def moved(self) -> dict[str, Tensor]:
        """How far each of the tensors is from where it was before the first step."""
        now = _tensors(self._network)
        return {name: now[name].detach() - self._before[name] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on with it, beside the network, the buffer and the random states."""
        return {
            "left": self.left,
            "losses": self._losses.clone(),
            "before": {name: tensor.clone() for name, tensor in self._before.items()},
            "still": {name: tensor.clone() for name, tensor in self._still.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, in a finetuning of the same network with the same settings."""
        self.left = state["left"]
        self._losses.copy_(state["losses"])
        _restore(self._before, state["before"])
        _restore(self._still, state["still"])
        if self._schedule is not None:
            self._schedule.step.fill_(self.steps - self.left)

    def _rate(self, step: int) -> float:
        return self._lr / 2 * (1 + math.cos(math.pi * step / self.steps))

    def _step(self, parameters: list[nn.Parameter]) -> None:
        torch.clear_autocast_cache()  # inside a user's autocast it would keep the weights of the first step
        step = self.steps - self.left
        drawn = self._buffer.draw(self._batch, self._generator)
        rows = {name: column.to(self._device) for name, column in drawn.items()}
        value, gradients = self._differentiate(step, rows, parameters)
        if self._processes is not None and self._processes.count > 1:
            value, gradients = self._together(self._processes, value, parameters, gradients, self._weight(rows["y"]))
        pairs = [(p, g) for p, g in zip(parameters, gradients, strict=bool(gradients)) if g is not None]
        with torch.no_grad():
            if self._schedule is not None:
                self._schedule.descend([p for p, _ in pairs], [g for _, g in pairs], value.detach())
                return
            self._losses[step] = value.detach()
            if pairs:
                torch._foreach_add_([p for p, _ in pairs], [g for _, g in pairs], alpha=-self._rate(step))

    def _differentiate(
        self, step: int, rows: Mapping[str, Tensor], parameters: list[nn.Parameter]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The loss, and its gradient for each parameter; none at all where no parameter takes one.

        With a schedule they are gradients of the loss times the rate: that is a product of a few numbers, not of all.
        """
        x, y = unpack(rows), rows["y"]
        with nullcontext() if self._autocast is None else torch.autocast(self._device.type, self._autocast):
            inputs = x if self._augment is None else self._augment(x)
            if inputs is None:
                raise TypeError("augment gave None; it must give the inputs, changed")
            engine = None if self._loss is not None or self._distill else self._engine
            if step and engine is not None and backpropagates(self._network, engine):
                value, _, gradients = self._network.backpropagate(inputs, _labels(y))
                return value, gradients
            try:
                logits = self._forward(self._model, inputs)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ValueError(
                    f"batch norm in training mode cannot do with {len(y)} example: draw more (batch is {self._batch}, "
                    f"the buffer holds {len(self._buffer)}), or leave its statistics out of what is finetuned"
                ) from error
            if not isinstance(logits, Tensor):
                raise TypeError(f"forward gave a {type(logits).__name__}; it must give logits, a tensor")
            if step == 0 and (self._schedule is None or not self._schedule.checked):
                _check_first(self._buffer, logits, len(y), self._loss, self._distill)
            value = self._objective(logits, rows)
        if not parameters:
            return value, ()
        if not value.requires_grad:
            raise ValueError(
                "the loss does not depend on the tensors to finetune: forward or loss detaches it or is under "
                "torch.no_grad(), or the network does not use them"
            )
        rate = None if self._schedule is None else self._schedule.rate()
        return value, torch.autograd.grad(value, parameters, rate, allow_unused=True)

    def _objective(self, logits: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        value = F.cross_entropy(logits, _labels(rows["y"])) if self._loss is None else self._loss(logits, rows["y"])
        if not isinstance(value, Tensor) or value.ndim:
            gave = type(value).__name__ if not isinstance(value, Tensor) else f"tensor of shape {tuple(value.shape)}"
            raise ValueError(f"loss gave a {gave}; it must give one number, as a tensor that gradients go through")
        if self._distill:
            value = value + self._distill * F.mse_loss(logits.float(), rows["logits"].float())
        return value

    def _weight(self, y: Tensor) -> int | Tensor:
        """Over how many labels the loss of a batch is a mean: cross-entropy's leaves out those that are none."""
        if self._loss is None and not self._distill and not y.is_floating_point():
            return (_labels(y) != -100).sum()
        return len(y)

    @staticmethod
    def _together(
        processes: Processes,
        value: Tensor,
        parameters: list[nn.Parameter],
        gradients: Sequence[Tensor | None],
        examples: int | Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Loss and gradients over what all processes drew."""
        own = gradients or [None] * len(parameters)
        dense = [g.to_dense() if g is not None and g.is_sparse else g for g in own]
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, dense, strict=True)]
        value, *whole = processes.mean_over_examples([value, *whole], examples)
        return value, tuple(whole)

    def _agree_on_statistics(self) -> None:
        """Running statistics that were finetuned saw other images in each process."""
        if self._processes is None:
            return
        for name, tensor in self._network.named_buffers():
            if name in self._before and tensor.is_floating_point():
                tensor.copy_(self._processes.mean(tensor))

    def _put_back(self) -> None:
        self._put_into(self._before | self._still)

    def _put_into(self, values: Mapping[str, Tensor]) -> None:
        _put_into(self._network, values)
        for module, name in self._unset:
            module._buffers[name] = None


class _Schedule:
    """The learning rate of each step and the losses, on the device, for steps that are replayed."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.rates = torch.zeros(steps, device=device)
        self.losses = torch.zeros(steps, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.checked = False  # whether the first step of all was made, and its batch fitted the network

    def begin(self, rates: list[float]) -> None:
        self.rates.copy_(torch.tensor(rates))
        self.step.zero_()

    def rate(self) -> Tensor:
        """Return the learning rate of this step."""
        return self.rates.index_select(0, self.step)[0]

    def descend(self, parameters: list[Tensor], gradients: list[Tensor], loss: Tensor) -> None:
        if parameters:
            torch._foreach_sub_(parameters, gradients)
        self.losses.index_copy_(0, self.step, loss.float().reshape(1))
        self.step.add_(1)
        self.checked = True


def pack(x: Tensor | Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """A batch as columns of a buffer: ``x`` (a mapping becomes ``x.<key>``) and ``y``."""
    if not isinstance(x, Mapping):
        return {"x": x, "y": y}
    if strange := [key for key in x if not isinstance(key, str)]:
        raise ValueError(f"x has the key {strange[0]!r}; the keys of a mapping must be words")
    return {**{f"x.{key}": value for key, value in x.items()}, "y": y}


def unpack(rows: Mapping[str, Tensor]) -> Any:
    """The input among a buffer's columns: ``x``, or a mapping of the columns ``x.<key>``."""
    if "x" in rows:
        return rows["x"]
    return {name.removeprefix("x."): column for name, column in rows.items() if name.startswith("x.")}


def check_autocast(autocast: torch.dtype | None) -> None:
    """Raise ``ValueError`` unless ``autocast`` is a dtype that a repair can compute in."""
    if not isinstance(autocast, torch.dtype | None) or (autocast is not None and not autocast.is_floating_point):
        raise ValueError(f"autocast is {autocast!r}; it must be a dtype, say torch.bfloat16, or None")
    if autocast == torch.float16:
        raise ValueError("autocast is torch.float16, which needs a gradient scaler; use torch.bfloat16")


def check_functions(**functions: object) -> None:
    for name, value in functions.items():
        if not callable(value) and (value is not None or name == "forward"):
            raise ValueError(f"{name} is {value!r}; it must be a function")


def check_buffer(buffer: Buffer, distill: float) -> None:
    """An error if there is nothing, or not enough, in it to finetune on."""
    if not len(buffer):
        raise ValueError("the buffer is empty: there is nothing to finetune on. Add examples before")
    for column, why in (("y", "finetuning needs"), ("logits", f"distill is {distill}, which needs")):
        if column not in buffer.columns and (column == "y" or distill):
            raise ValueError(f"{why} the column {column!r}; the buffer has {', '.join(buffer.columns)}")
    if not any(column == "x" or column.startswith("x.") for column in buffer.columns):
        raise ValueError(
            "finetuning needs the inputs as the column 'x', or several as 'x.<name>'; the buffer has "
            + ", ".join(buffer.columns)
        )


def check_label_shape(y: Tensor, logits: Tensor) -> None:
    """An error if labels are neither classes nor probabilities of classes for such ``logits``."""
    if logits.ndim < 2:
        raise ValueError(f"the network's output has shape {tuple(logits.shape)}; it must be (batch, classes){OTHER}")
    soft = y.is_floating_point()
    wanted = (*y.shape[:1], *(logits.shape[1:] if soft else logits.shape[2:]))
    if tuple(y.shape) != wanted:
        what = "labels that are not whole numbers are probabilities, and" if soft else "class labels"
        raise ValueError(
            f"y has shape {tuple(y.shape)}; for logits of shape {tuple(logits.shape)} {what} must have {wanted}{OTHER}"
        )


def check_labels(y: Tensor, logits: Tensor) -> None:
    """An error if class labels do not index the columns of ``logits``, or are no probabilities. The host waits here.

    −100 means no label.
    """
    check_label_shape(y, logits)
    if not y.numel():
        return
    classes = logits.shape[1]
    if y.is_floating_point():
        if classes < 2 or not bool(((y >= 0).all(1) & ((y.float().sum(1) - 1).abs() < 0.02)).all()):
            raise ValueError(
                "y holds numbers that are no probabilities of classes: they must be 0 or more, and add up to 1 over "
                f"two or more classes{OTHER}"
            )
        return
    labels = _labels(y)
    low, high = torch.stack(torch.where(labels == -100, 0, labels).aminmax()).tolist()
    if low < 0 or high >= classes:
        allowed = f"0 to {classes - 1}"
        raise ValueError(
            f"labels from {low} to {high}; the network has {classes} outputs, so they must be {allowed}{OTHER}"
        )


@contextmanager
def untouched_randomness(generator: torch.Generator) -> Iterator[None]:
    """Within, the global random states (torch's on CPU and CUDA, ``random``, numpy's) start from a number drawn from
    ``generator``; augmentation and dropout draw from them. On leaving they are as they were.
    """
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # ``torch.manual_seed`` is for devices too that no one has used yet
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def _eager() -> AbstractContextManager[None]:
    """Run a compiled network uncompiled: frozen layers and modes would make ``torch.compile`` start again each time."""
    if "torch._dynamo" not in sys.modules:  # importing it only to switch it off would take seconds
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def _labels(y: Tensor) -> Tensor:
    """Class labels of any integer dtype as cross-entropy wants them."""
    return y if y.is_floating_point() else y.long()


def _check_first(buffer: Buffer, logits: Tensor, drawn: int, loss: Loss | None, distill: float) -> None:
    """Before the first update: do the stored labels and logits fit what the network gives for the examples drawn?"""
    if loss is None:
        check_labels(buffer["y"], logits)
    if (loss is None or distill) and len(logits) != drawn:
        raise ValueError(
            f"augment or forward made {len(logits)} rows of logits of {drawn} examples; it must be a row each"
        )
    if distill and buffer["logits"].shape[1:] != logits.shape[1:]:
        stored, now = tuple(buffer["logits"].shape[1:]), tuple(logits.shape[1:])
        raise ValueError(f"the stored logits have shape {stored}, the network's have {now}; distill needs them equal")


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers as they are now: a network may put another tensor in a buffer's place."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _written(network: nn.Module) -> dict[str, Tensor]:
    """What a forward pass may write to: buffers, and the weights of embeddings that it keeps to a norm."""
    embeddings = [module for module in network.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    kept = {id(module.weight) for module in embeddings if module.max_norm is not None}
    weights = {name: parameter.detach() for name, parameter in network.named_parameters() if id(parameter) in kept}
    return {**dict(network.named_buffers()), **weights}


def _put_into(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give parameters and buffers these values; one that has another shape by now, or is a tensor of
    ``inference_mode``, which cannot be written to, becomes this tensor.
    """
    now = _tensors(network)
    for name, value in values.items():
        alike = name in now and (now[name].shape, now[name].dtype) == (value.shape, value.dtype)
        if alike and not now[name].is_inference():
            _restore(now, {name: value})
        else:
            path, _, own = name.rpartition(".")
            setattr(network.get_submodule(path), own, value)


def _restore(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(value)


def unfrozen(network: nn.Module, names: Collection[str]) -> tuple[str, ...]:
    """``names`` less what is frozen; an error if nothing is left."""
    if not names:
        raise ValueError("names is empty: name the tensors to finetune")
    check_names(network, names)
    left = movable(network, names)
    if not left:
        raise ValueError(
            f"nothing to finetune: of the {len(names)} tensors named, all are frozen (requires_grad=False, or "
            "statistics of layers in evaluation mode)"
        )
    return left


def movable(network: nn.Module, names: Collection[str]) -> tuple[str, ...]:
    """Those of ``names`` that are not frozen.

    Frozen are parameters with requires_grad=False, and the statistics of layers that are in evaluation mode while the
    network is in training mode, or where it is not, of layers in parts that are frozen as a whole.
    """
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    if network.training:
        frozen |= resting(network)
    else:
        parts = [(path, module) for path, module in network.named_modules() if _is_frozen(module)]
        layers = [layer for path, module in parts for layer in module.named_modules(prefix=path)]
        frozen.update(*(statistics(path, layer) for path, layer in layers))
    return tuple(name for name in float_tensors(network) if name in set(names) and name not in frozen)


def resting(network: nn.Module) -> set[str]:
    """Names of the statistics of layers that are in evaluation mode."""
    return set().union(*(statistics(path, part) for path, part in network.named_modules() if not part.training))


def check_names(network: nn.Module, names: Collection[str]) -> None:
    """An error if a name is not a tensor's, or if only some of the statistics of a layer are named."""
    known = float_tensors(network)
    for name in names:
        if name not in known:
            hint = ""
            with suppress(ValueError):  # there may be no telling the groups of this network
                hint = f"; it is a group: forgetless.groups(model)[{name!r}]" if name in groups(network) else ""
            raise ValueError(f"the network has no parameter or float buffer named {name!r}{hint}")
    for path, module in network.named_modules():
        own = statistics(path, module)
        if own & set(names) and not own <= set(names):
            missing = ", ".join(sorted(own - set(names)))
            raise ValueError(f"the statistics of {path} move together: also name {missing}, or none of them")


def _is_frozen(module: nn.Module) -> bool:
    """Whether it has parameters, and none that requires gradients."""
    flags = [parameter.requires_grad for parameter in module.parameters()]
    return bool(flags) and not any(flags)


def _moving(network: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors that may move: the chosen ones, beside chosen buffers the others of the module, as counters, and
    what follows a chosen weight, as the vectors of a spectral norm.
    """
    tensors = float_tensors(network)
    moving = {name: tensors[name] for name in names}
    follow = tuple(name.rpartition(".")[0] + "." for name in names if ".parametrizations." in f".{name}")
    older = {name.removesuffix("_orig") + vector for name in names if name.endswith("_orig") for vector in ("_u", "_v")}
    moving |= {n: buffer for n, buffer in network.named_buffers() if n in older or n.startswith(follow)}
    for path, module in network.named_modules():
        own = {joined(path, name): buffer for name, buffer in module.named_buffers(recurse=False)}
        if own.keys() & set(names):
            moving.update((name, buffer) for name, buffer in own.items() if name in names or name not in tensors)
    return moving


def _check_finite(losses: list[float], tensors: Mapping[str, Tensor], buffer: Buffer) -> None:
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            rows = {name: buffer[name].reshape(len(buffer), -1) for name in buffer.columns}
            bad = {name: int((~column.isfinite().all(1)).sum()) for name, column in rows.items()}
            held = ", ".join(f"{count} of its {len(buffer)} rows of {name}" for name, count in bad.items() if count)
            advice = (
                f"The buffer holds NaN or infinity: {held}"
                if held
                else "Try a smaller lr of the finetuning (in a run: ft_lr)"
            )
            if not held and bool((_labels(rows["y"]) == -100).all(1).any()):
                advice = "The buffer holds examples without a label (−100), and of such alone there is no loss"
            raise NonFiniteError(
                f"the loss became {loss} at step {step} of {len(losses)} of the finetuning; "
                f"the network is as it was before it. {advice}"
            )
    device = next(iter(tensors.values())).device  # a network may be on several
    finite = torch.stack([tensor.isfinite().all().to(device) for tensor in tensors.values()]).tolist()
    if not all(finite):
        raise NonFiniteError(
            f"{list(tensors)[finite.index(False)]} became infinite or NaN at the last of {len(losses)} steps of the "
            "finetuning; the network is as it was before it. Try a smaller lr of the finetuning (in a run: ft_lr)"
        )
