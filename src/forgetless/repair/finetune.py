"""Finetune chosen tensors of a network on a buffer, and nothing else: one call for what ``finetuning`` does."""

from collections.abc import Collection

import torch
from torch import nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.memory.buffer import Buffer
from forgetless.memory.labels import with_labels
from forgetless.repair.descent import Descent
from forgetless.repair.finetuning import Finetuned, Finetuning
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, shifts_labels
from forgetless.repair.restoring import untouched_randomness
from forgetless.repair.settings import LR, STEPS, Finetune


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
    processes: Processes = ALONE,
) -> Finetuned:
    """Finetune the tensors ``names`` of ``model`` on ``buffer``, and nothing else.

    The user's gradients, optimizer, ``requires_grad`` flags, train/eval modes and random states stay as they are. A
    parameter with ``requires_grad=False`` stays frozen. If the loss or a weight becomes infinite or NaN, the network is
    restored and ``NonFiniteError`` names the step. It synchronises with the GPU before the first step and at the end.

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
            Default: this process alone; for a sharded network all processes.

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
