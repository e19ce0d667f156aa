"""The contract of a method: an object with one step. ``forgetless.check`` tells whether an own one keeps it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import Field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from forgetless.config.fields import settings_of
from forgetless.data.stream import Split, Task
from forgetless.methods.learner import Batch, Learner


class Method(ABC):
    """A way to train on a stream. Subclasses are dataclasses whose fields are their settings, each with ``setting(…)``.

    Attributes:
        memory: what the training loop does with a buffer after each step: "none"; "reservoir" or "balanced": it offers
            the batch; "own": nothing, the method writes in ``end_task``
        columns: what the method stores beside ``x`` and ``y``; every name must be among what ``step`` returns (or, with
            memory "own", what ``end_task`` writes)
        scenarios: where it makes sense: "class" (new classes in every task), "domain"
        joint: whether it is given the training examples of all tasks at once
        tells_sensitivity: whether it trains on one task after another, so that S_g can be measured
    """

    memory: ClassVar[str] = "none"
    columns: ClassVar[tuple[str, ...]] = ()
    scenarios: ClassVar[tuple[str, ...]] = ("class", "domain")
    joint: ClassVar[bool] = False
    tells_sensitivity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a setting out of its range."""
        for name, declared in settings_of(type(self)).items():
            object.__setattr__(self, name, declared.check(getattr(self, name)))

    def begin(self, learner: Learner) -> None:  # noqa: B027
        """Before anything else in a run: take what is needed of the learner, refuse a network it cannot train.

        A run that goes on from a state begins too, and then loads it. Here, not in ``step``, the host may read.
        """

    @abstractmethod
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward, maybe replay, backward, update. Gives the loss, and columns: the batch's ``logits``, those declared.

        No read by the host in here; Python branches only on host integers (``len(learner.buffer)``, ``batch.task``).
        """

    def end_task(self, learner: Learner, task: Task, number: int) -> None:  # noqa: B027
        """After the last step of a task (``number`` from 0): consolidate, or write the memory."""

    def finish(self, learner: Learner) -> Iterator[None] | None:
        """After the last task, before any finetuning at the end.

        What takes long yields between its parts: there a run can stop. To go on, ``finish`` is called anew, and begins
        where the method's state says that it was.
        """
        return None

    def draws(self, learner: Learner) -> int:
        """The most examples a step draws from the buffer at a time, on which its cost depends."""
        return learner.replay_size

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        """Scores of all classes for prepared inputs ``x``, the network being in evaluation mode."""
        return learner.forward(x)

    def predict_task(self, learner: Learner, x: Tensor, task: int) -> Tensor:
        """The same for inputs of which the task is known (from 0), for task-IL; scores of other classes do not count.

        Left as it is, evaluation takes what ``predict`` gave and does not call it.
        """
        return self.predict(learner, x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        """What the method has gathered: its attributes, as plain data and tensors.

        A method that holds anything else, a network or references to parameters, writes this and ``load_state_dict``.
        """
        of_network: set[int] = set()
        for name, value in vars(self).items():
            for part in value if isinstance(value, list | tuple) else [value]:
                if isinstance(part, Tensor):
                    of_network = of_network or _memory(learner.network)
                if isinstance(part, Tensor) and part.numel() and part.untyped_storage().data_ptr() in of_network:
                    raise TypeError(
                        f"{type(self).__name__} holds {name}, a part of the network, of which it would have a copy "
                        "when it goes on: take it from learner.network, or write state_dict and load_state_dict"
                    )
                if not (part is None or isinstance(part, bool | int | float | str | Tensor)):
                    raise TypeError(
                        f"{type(self).__name__} holds {name}, a {type(part).__name__}, which a checkpoint cannot keep; "
                        "write state_dict and load_state_dict for it"
                    )
        return dict(vars(self))

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        for name, value in state.items():
            made = _here(value, learner)
            made = tuple(made) if isinstance(getattr(self, name, None), tuple) else made
            object.__setattr__(self, name, made)  # of frozen dataclasses too


def _here(value: Any, learner: Learner) -> Any:
    if isinstance(value, Tensor):
        return value.to(learner.device, copy=True)
    return [_here(part, learner) for part in value] if isinstance(value, list | tuple) else value


def _memory(network: nn.Module) -> set[int]:
    """Where the parameters and buffers of a network are."""
    return {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}


def check_declared(method: Method) -> None:
    """An error for what a class of one's own may declare wrongly."""
    own = type(method)
    if method.memory not in ("none", "reservoir", "balanced", "own"):
        raise ValueError(f"{own.__name__}.memory is {method.memory!r}; it must be none, reservoir, balanced or own")
    if bare := [name for name, value in vars(own).items() if isinstance(value, Field)]:
        raise ValueError(
            f"{own.__name__} has settings ({', '.join(bare)}) and is no dataclass: put @dataclass above it"
        )


def stepped(method: Method, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """A step; an error if it gives something else than it must."""
    try:
        made: Any = method.step(learner, batch)
    except RuntimeError as error:
        if batch.x.dtype != torch.uint8 or not any(word in str(error) for word in ("Byte", "unsigned char")):
            raise
        raise RuntimeError(
            f"{error}. A batch's images are bytes: learner.augment(batch.x) makes inputs of them"
        ) from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
            f"step of {type(method).__name__} gives a {type(made).__name__}; it must give the loss and the columns "
            'for the buffer: return loss.detach(), {"logits": logits.detach()}, or {} where there are none'
        )
    loss, columns = made
    return loss, columns


def sample(split: Split, size: int, learner: Learner) -> Split:
    """``size`` examples of a split without replacement, or all if there are fewer."""
    rows = torch.randperm(len(split), generator=learner.generator, device=split.y.device)[:size]
    return split.subset(rows)
