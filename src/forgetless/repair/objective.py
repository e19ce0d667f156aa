"""What a finetuning minimises: CE(y, f(x)) + λ · MSE(z, f(x)).

z are the logits stored with x. λ is ``distill``: 0 for FPF and k-FPF-CE, above 0 for k-FPF-KD. ``loss`` replaces the
cross-entropy; ``loss="model"`` is the model's own loss, which is the default for a causal language model. Where the
columns ``recalled`` hold what a language model predicted earlier, the distance to that replaces all of this.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.modules import generates, unwrap
from forgetless.memory.batch import unpack
from forgetless.memory.labels import NO_LABEL, check_labels, check_values, class_axis, class_labels
from forgetless.repair.divergence import divergence, label_weights, recalls

Loss = Callable[[Any, Any], Tensor] | Literal["model"]
Forward = Callable[..., Any]
Augment = Callable[[Any], Any]


def call(model: nn.Module, x: Any) -> Any:
    """Return the logits of ``model`` for ``x``; a mapping becomes keyword arguments (Hugging Face's batches).

    Of an output with an entry or attribute ``logits`` these are the logits. Any other output is returned as it is.
    """
    return logits_of(_raw(model, x))


def check_arguments(model: nn.Module, x: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` if the network does not take the entries of ``x`` as keyword arguments."""
    try:
        inspect.signature(unwrap(model).forward).bind(**x)
    except TypeError as error:
        raise TypeError(
            f"x is a mapping, so the network is called with the keyword arguments {', '.join(x)}: {error}. If it takes "
            "the mapping itself, give forward=lambda model, x: model(x)"
        ) from None


def shifts_labels(model: nn.Module) -> bool:
    """Return whether a network is a causal language model that shifts the labels in its own loss."""
    parameters = inspect.signature(unwrap(model).forward).parameters.values()
    return generates(model) and any(p.name == "labels" or p.kind is p.VAR_KEYWORD for p in parameters)


@dataclass(frozen=True)
class Objective:
    """The functions that turn a batch of the buffer into a loss."""

    augment: Augment | None = None  # applied to the inputs drawn from the buffer
    loss: Loss | None = None  # replaces cross-entropy; "model": the model's own
    forward: Forward = call
    autocast: torch.dtype | None = None  # the dtype of the forward pass
    prepare: Augment | None = None  # applied to held-out inputs; default: ``augment``
    shifts: bool = False  # the network is a causal language model that shifts the labels in its own loss

    def __post_init__(self) -> None:
        if self.autocast == torch.float16:
            raise ValueError("autocast is torch.float16, which needs a gradient scaler; use torch.bfloat16")
        if not isinstance(self.autocast, torch.dtype | None):
            raise ValueError(f"autocast is {self.autocast!r}; it must be a dtype, such as torch.bfloat16")
        if not (self.augment is None or callable(self.augment)):
            raise ValueError(f"augment is {self.augment!r}; it must be a function of the inputs")
        if not (self.loss is None or self.loss == "model" or callable(self.loss)):
            raise ValueError(f"loss is {self.loss!r}; it must be a function (output, y) -> loss, or 'model'")

    def cast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of a forward pass and its loss."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def uses_own_loss(self, rows: Mapping[str, Tensor]) -> bool:
        """Return whether the loss is the model's own: as asked for, or since ``rows`` have labels for its tokens."""
        if self.loss is None and self.shifts and self.forward is call and "x" not in rows:
            return _are_tokens(rows)
        return self.loss == "model"

    def classifies(self, rows: Mapping[str, Tensor]) -> bool:
        """Return whether the loss is the cross-entropy between logits and labels."""
        return self.loss is None and not self.uses_own_loss(rows)

    def counts_tokens(self, rows: Mapping[str, Tensor]) -> bool:
        """Return whether the loss is the mean over tokens of the model's own cross-entropy: log perplexity."""
        return self.uses_own_loss(rows) and _are_tokens(rows)

    def targets(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``unpadded`` rows without the label of each first token, which a causal language model ignores."""
        if not (self.shifts and self.counts_tokens(rows)):
            return rows
        y = rows["y"].clone()
        y[:, :1] = NO_LABEL
        return rows | {"y": y}

    def inputs(self, rows: Mapping[str, Tensor]) -> Any:
        """Return the augmented inputs of a batch."""
        return unpack(rows) if self.augment is None else self.augment(unpack(rows))

    def plain_inputs(self, rows: Mapping[str, Tensor]) -> Any:
        """Return the inputs of a batch that is only measured."""
        prepare = self.prepare or self.augment
        return unpack(rows) if prepare is None else prepare(unpack(rows))

    def output(self, model: nn.Module, inputs: Any, rows: Mapping[str, Tensor]) -> Any:
        """Return what ``value``, ``hits`` and ``check`` expect: the output of the network for these inputs.

        For one target it is the logits where the output names them, for several the whole output. For the model's own
        loss the network also gets the labels: ``model(**x, labels=y)``, ``model(x, y)`` or ``forward(model, x, y)``.
        """
        y = unpack(rows, "y")
        if self.forward is not call:
            return self.forward(model, inputs, y) if self.loss == "model" else self.forward(model, inputs)
        if self.uses_own_loss(rows):
            return model(**inputs, labels=y) if isinstance(inputs, Mapping) else model(inputs, y)
        return _raw(model, inputs) if isinstance(y, Mapping) else call(model, inputs)

    def value(self, output: Any, rows: Mapping[str, Tensor], distill: float) -> Tensor:
        """Return the loss of a batch, given the network's output for it."""
        if recalls(rows):
            return divergence(logits_of(output), rows)
        value = self._classification_loss(output, rows) if self.classifies(rows) else self._other_loss(output, rows)
        if distill:
            value = value + distill * F.mse_loss(logits_of(output).float(), rows["logits"].float())
        return value

    def repeats_tokens(self, output: Any, rows: Mapping[str, Tensor]) -> bool:
        """Return whether the user's loss falls as the output for a token comes closer to that token.

        The last token of each sequence decides: a loss that shifts the labels has none for its output.
        """
        per_token = isinstance(output, Tensor) and _are_tokens(rows) and output.shape[:-1] == rows["y"].shape
        if not callable(self.loss) or not per_token:
            return False
        logits, y = output.detach().requires_grad_(), class_labels(rows["y"])
        value = self._other_loss(logits, rows)
        if not value.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(value, logits, materialize_grads=True)
        known = (y != NO_LABEL).long()
        last = y.shape[1] - 1 - known.flip(1).argmax(1, keepdim=True)
        token = y.gather(1, last).clamp(min=0)  # 0 for a sequence without labels, whose gradient is 0
        at_last = gradient.gather(1, last[..., None].expand(-1, -1, gradient.shape[2]))[:, 0]
        return bool((at_last.gather(1, token) < 0).any())

    @torch.no_grad()
    def hits(self, output: Any, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the number of correct predictions and of labels; None if the targets are not class labels."""
        if not self.classifies(rows):
            return None
        heads = self._heads(output, rows)
        if any(y.is_floating_point() for _, y in heads):
            return None
        correct = [(logits.argmax(class_axis(y, logits)) == y).sum() for logits, y in heads]
        labels = [(class_labels(y) != NO_LABEL).sum() for _, y in heads]
        return torch.stack(correct).sum(), torch.stack(labels).sum()

    def examples(self, rows: Mapping[str, Tensor], distill: float) -> int | Tensor:
        """Return the number (or weight) of labels over which the loss is a mean; cross-entropy ignores ``NO_LABEL``."""
        if recalls(rows):
            return label_weights(rows).sum()
        y = unpack(rows, "y")
        counts = self.loss is None or self.counts_tokens(rows)
        if counts and not distill and isinstance(y, Tensor) and not y.is_floating_point():
            return (class_labels(y) != NO_LABEL).sum()
        return _length(rows)

    def check(self, stored: Mapping[str, Tensor], output: Any, drawn: Mapping[str, Tensor], distill: float) -> None:
        """Raise an error if the labels and logits of a buffer do not fit the network's output for rows drawn from it.

        The values of labels are checked in all ``stored`` rows, which synchronises with the GPU.
        """
        results = []
        if self.classifies(stored):
            heads = zip(self._heads(output, drawn), self._heads(output, stored), strict=True)
            for (logits, y), (_, stored_y) in heads:
                check_labels(y, logits, values=False)
                check_values(stored_y, logits.shape[class_axis(y, logits)])
                results.append(logits)
        if distill:
            logits = logits_of(output)
            if not isinstance(logits, Tensor):
                raise TypeError(f"the output is a {type(logits).__name__}; distill needs one tensor of logits")
            results.append(logits)
        size = _length(drawn)
        for logits in results:
            if len(logits) != size:
                raise ValueError(
                    f"augment or forward made {len(logits)} rows of logits from {size} examples; it must keep their "
                    "number"
                )
        if distill and stored["logits"].shape[1:] != results[-1].shape[1:]:
            before, now = tuple(stored["logits"].shape[1:]), tuple(results[-1].shape[1:])
            raise ValueError(
                f"the stored logits have shape {before}, the network's have {now}; distill needs them equal"
            )

    def _classification_loss(self, output: Any, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the cross-entropy, of several heads the sum."""
        heads = self._heads(output, rows)
        if isinstance(unpack(rows, "y"), Mapping):
            return torch.stack([_cross_entropy_or_0(*head) for head in heads]).sum()
        return _cross_entropy(*heads[0])

    def _other_loss(self, output: Any, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the user's loss or the model's own, or raise ``ValueError`` if that is not one number."""
        value: Any = self.loss(output, unpack(rows, "y")) if callable(self.loss) else _entry(output, "loss")
        if isinstance(value, Tensor) and not value.ndim:
            return value
        kind = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        what = "loss returned" if callable(self.loss) else "the model's output has no loss, it is"
        raise ValueError(f"{what} a {kind}; it must return one number, as a tensor with a gradient")

    def _heads(self, output: Any, rows: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the logits and labels of each classification: one, or one per entry of a mapping."""
        y = unpack(rows, "y")
        who = "the network" if self.forward is call else "forward"
        if isinstance(y, Tensor):
            if not isinstance(output, Tensor):
                raise TypeError(
                    f"{who} returned a {type(output).__name__}, not a tensor of logits: use forward=(model, x) -> "
                    "logits, or loss=(output, y) -> loss"
                )
            return [(output, y)]
        entries = output if isinstance(output, Mapping) else {}
        if missing := [name for name in y if not isinstance(entries.get(name), Tensor)]:
            holds = f" with {', '.join(map(str, entries))}" if entries else ""
            raise TypeError(
                f"y has the targets {', '.join(y)}, but {who} returned a {type(output).__name__}{holds}, without "
                f"logits for {missing[0]!r}: return {{name: logits}}, or give loss=(output, y) -> loss"
            )
        return [(entries[name], y[name]) for name in y]


def logits_of(output: Any) -> Any:
    """Return the logits of an output that names them; the output itself if it does not."""
    return _entry(output, "logits")


def _are_tokens(rows: Mapping[str, Tensor]) -> bool:
    """Return whether ``y`` holds a label for each token."""
    y = rows.get("y")
    return y is not None and y.ndim == 2 and not y.is_floating_point()


def _length(rows: Mapping[str, Tensor]) -> int:
    return len(next(iter(rows.values())))


def _raw(model: nn.Module, x: Any) -> Any:
    return model(**x) if isinstance(x, Mapping) else model(x)


def _entry(output: Any, name: str) -> Any:
    """Return the entry or attribute ``name`` of an output; the output itself if it has none."""
    if isinstance(output, Tensor):
        return output
    return output.get(name, output) if isinstance(output, Mapping) else getattr(output, name, output)


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    labels = class_labels(y)
    if class_axis(y, logits) != 1:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    return F.cross_entropy(logits, labels)


def _cross_entropy_or_0(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy, or 0 where a batch has no label for this head. Needs no sync."""
    if y.is_floating_point():
        return _cross_entropy(logits, y)
    none = (class_labels(y) == NO_LABEL).all()
    return _cross_entropy(logits, torch.where(none, 0, class_labels(y))) * ~none
