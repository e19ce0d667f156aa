"""Try forward pass and loss once, so that inputs that do not fit surface with the first batch, not at a repair."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from forgetless.compute.modules import uncompiled, unwrap, vocabulary, without_reducer
from forgetless.compute.shards import compute_device
from forgetless.memory.batch import role, unpack
from forgetless.memory.labels import NO_LABEL, class_labels
from forgetless.memory.ragged import INPUTS, cut
from forgetless.repair.freezing import finetuning_modes
from forgetless.repair.gradients import NO_GRADIENT
from forgetless.repair.objective import Objective, call, check_arguments
from forgetless.repair.restoring import Restorer, untouched_randomness

UNSHIFTED = (
    "y holds the input tokens themselves, so cross-entropy would teach the network to repeat each token. If it "
    "predicts the next token and shifts the labels in its own loss, as Hugging Face's do, give loss='model' and pass a "
    "mapping with both, {'input_ids': x, 'labels': y}; otherwise shift y, or give your loss: loss=…"
)
UNSHIFTED_LOSS = (
    "loss compares the output for each token with that token, but the network predicts the next one, so a repair would "
    "teach it to repeat. Leave loss out: the network's own loss shifts the labels"
)
SHIFTED_TWICE = (
    "y holds the next tokens, but the network's own loss shifts the labels again, so it would predict the token after "
    "the next. Pass the input tokens as labels, or give the loss that you train with: loss=…"
)


def try_out(
    model: nn.Module,
    objective: Objective,
    rows: Mapping[str, Tensor],
    *,
    names: Collection[str],
    batch: int,
    distill: float = 0.0,
) -> None:
    """Raise the error that a finetuning of the tensors ``names`` on such examples would raise; change nothing.

    It runs one forward pass of at most ``batch`` examples in the modes of a finetuning, apart from batch norm, which
    runs in evaluation mode.
    """
    x = unpack(rows)
    if isinstance(x, Mapping) and objective.forward is call and objective.loss != "model":
        check_arguments(model, x)
    if objective.classifies(rows) and _unshifted(rows):
        raise ValueError(UNSHIFTED)
    if objective.uses_own_loss(rows) and objective.shifts and _shifted(rows):
        raise ValueError(SHIFTED_TWICE)
    network = unwrap(model)
    check_vocabulary(network, rows)
    device = compute_device(network)
    parameters = {name for name, _ in network.named_parameters()} & set(names)
    with torch.inference_mode(False):  # its tensors cannot take part in autograd
        part = cut({name: column[:batch].detach().clone().to(device) for name, column in rows.items()})
    written = Restorer(network, ())
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        untouched_randomness(torch.Generator().manual_seed(0)),
        uncompiled(),
        finetuning_modes(model, parameters),
    ):
        try:
            with objective.cast(device):
                output = objective.output(without_reducer(model), objective.inputs(part), part)
                objective.check(rows, output, part, distill)
                value = objective.value(output, part, distill)
                if objective.shifts and _unshifted(rows) and objective.repeats_tokens(output, part):
                    raise ValueError(UNSHIFTED_LOSS)
        finally:
            written.restore_still()
            torch.clear_autocast_cache()
    if parameters and not value.requires_grad:
        raise ValueError(NO_GRADIENT)


def check_vocabulary(network: nn.Module, rows: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if the network has no embedding for some tokens in ``rows``. Synchronises with the GPU."""
    tokens, count = rows.get(INPUTS), vocabulary(network)
    if tokens is None or not tokens.numel() or count is None:
        return
    low, high = torch.stack(tokens.aminmax()).tolist()
    if low < 0 or high >= count:
        raise ValueError(
            f"input_ids holds tokens from {low} to {high}; {type(network).__name__} has a vocabulary of {count}, so "
            f"they must be 0 to {count - 1}: the tokenizer is another, or the vocabulary has changed"
        )


def _shifted(rows: Mapping[str, Tensor]) -> bool:
    """Return whether ``y`` holds the next token of the inputs wherever it has a label, and not the present one."""
    y, tokens = rows.get("y"), rows.get(INPUTS)
    if y is None or tokens is None or y.shape != tokens.shape or _unshifted(rows):
        return False
    known = class_labels(y[:, :-1]) != NO_LABEL
    return torch.equal(y[:, :-1][known], tokens[:, 1:][known]) and bool(known.any())


def _unshifted(rows: Mapping[str, Tensor]) -> bool:
    """Return whether ``y`` repeats an input of integers, position by position, wherever it has a label."""
    y = rows.get("y")
    if y is None or y.ndim < 2 or y.is_floating_point():
        return False
    known = class_labels(y) != NO_LABEL
    return any(
        not column.is_floating_point() and column.shape == y.shape and torch.equal(column[known], y[known])
        for name, column in rows.items()
        if role(name) == "x"
    ) and bool(known.any())
