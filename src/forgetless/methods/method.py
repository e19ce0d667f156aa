"""The contract of a continual-learning method. ``forgetless.check`` tests whether a class keeps it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import Field
from typing import Any, ClassVar

import torch
from torch import Tensor

from forgetless.config.fields import Checked
from forgetless.data.stream import Task
from forgetless.methods.learner import Batch, Learner


class Method(Checked, ABC):
    """A way to train on a stream. Subclasses are dataclasses whose fields are declared with ``setting``.

    Example: experience replay with a weight on the replayed examples.

        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> import torch.nn.functional as F
        >>> from forgetless import Method, check
        >>> from forgetless.methods import setting
        >>> @dataclass
        ... class WeightedReplay(Method):
        ...     memory: ClassVar[str] = "reservoir"
        ...     weight: float = setting(0.5, "Weight of the loss on replayed examples.", least=0)
        ...
        ...     def step(self, learner, batch):
        ...         logits = learner.forward(learner.augment(batch.x))
        ...         loss = F.cross_entropy(logits, batch.y)
        ...         if len(learner.buffer):
        ...             old = learner.replay()
        ...             loss = loss + self.weight * F.cross_entropy(learner.forward(old["x"]), old["y"])
        ...         learner.update(loss)
        ...         return loss.detach(), {"logits": logits.detach()}
        >>> check(WeightedReplay)

    Attributes:
        memory: What the training loop adds to the buffer after a step. ``"reservoir"`` and ``"balanced"``: the batch;
            ``"own"``: nothing, since the method fills the buffer in ``end_task``; ``"none"``: there is no buffer.
        columns: What the buffer stores in addition to ``x`` and ``y``. ``step`` must return each of these columns
            (``end_task`` with the memory ``"own"``).
        scenarios: The scenarios for which the method is made: ``"class"``, ``"domain"``.
        joint: Whether the method trains on the examples of all tasks at once.
        sequential: Whether the method trains on one task after the other, so that S_g can be measured.
    """

    memory: ClassVar[str] = "none"
    columns: ClassVar[tuple[str, ...]] = ()
    scenarios: ClassVar[tuple[str, ...]] = ("class", "domain")
    joint: ClassVar[bool] = False
    sequential: ClassVar[bool] = True

    def begin(self, learner: Learner) -> None:
        """Prepare for a run, or raise ``ValueError`` for a network that the method cannot train.

        A resumed run calls this before ``load_state_dict``. GPU-to-CPU synchronisation is allowed here.
        """

    @abstractmethod
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Train on a batch: forward, maybe replay, backward, update.

        No GPU-to-CPU synchronisation is allowed here. Python may branch only on host integers such as
        ``len(learner.buffer)`` and ``batch.task``.

        Returns:
            The loss, and the columns for the buffer: the batch's ``logits`` and what ``columns`` declares.
        """

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        """Consolidate or fill the buffer after the last step of a task; ``number`` counts from 0."""

    def finish(self, learner: Learner) -> Iterator[None] | None:
        """Train after the last task, before a final finetune.

        A long computation yields between its parts, where a run can stop. A resumed run calls ``finish`` again; the
        method then continues from its state.
        """
        return None

    def draws(self, learner: Learner) -> int:
        """Return the largest number of examples that a step draws from the buffer at once; FLOPs depend on it."""
        return learner.replay_size

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        """Return the scores of all classes for inputs ``x``, with the network in evaluation mode."""
        return learner.forward(x)

    def predict_task(self, learner: Learner, x: Tensor, task: int) -> Tensor:
        """Return the scores for inputs whose task (from 0) is known. Only the classes of that task count.

        Evaluation uses the scores of ``predict`` if a method does not override this.
        """
        return self.predict(learner, x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        """Return the attributes of the method, which must be plain data and tensors.

        A method that holds a network or references to its parameters overrides this and ``load_state_dict``.
        """
        network = (*learner.network.parameters(), *learner.network.buffers())
        memory = {tensor.untyped_storage().data_ptr() for tensor in network if tensor.numel()}
        for name, value in vars(self).items():
            for part in value if isinstance(value, list | tuple) else [value]:
                if isinstance(part, Tensor) and part.untyped_storage().data_ptr() in memory:
                    raise TypeError(
                        f"{type(self).__name__} holds {name}, a tensor of the network, which a checkpoint would copy; "
                        "use learner.network instead, or override state_dict and load_state_dict"
                    )
                if not (part is None or isinstance(part, bool | int | float | str | Tensor)):
                    raise TypeError(
                        f"{type(self).__name__} holds {name}, a {type(part).__name__}, which a checkpoint cannot "
                        "store; override state_dict and load_state_dict"
                    )
        return dict(vars(self))

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for name, value in state.items():
            restored = _restored(value, getattr(self, name, None), learner.device)
            object.__setattr__(self, name, restored)  # frozen dataclasses too


def _restored(value: Any, now: Any, device: torch.device) -> Any:
    """Return a copy of ``value`` on the device, as a tuple or with the memory layout of ``now`` if that has another."""
    if isinstance(value, Tensor):
        like = now if isinstance(now, Tensor) and now.shape == value.shape else value
        return torch.empty_like(like, dtype=value.dtype, device=device).copy_(value)  # sums depend on the layout
    if isinstance(value, dict):
        return {name: _restored(part, None, device) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = now if isinstance(now, list | tuple) and len(now) == len(value) else [None] * len(value)
        restored = [_restored(part, old, device) for part, old in zip(value, parts, strict=True)]
        return tuple(restored) if isinstance(now, tuple) else restored
    return value


def check_declaration(method: Method) -> None:
    """Raise ``ValueError`` for a class whose memory is unknown or whose settings lack ``@dataclass``."""
    kind = type(method)
    if method.memory not in ("none", "reservoir", "balanced", "own"):
        raise ValueError(f"{kind.__name__}.memory is {method.memory!r}; it must be none, reservoir, balanced or own")
    if fields := [name for name, value in vars(kind).items() if isinstance(value, Field)]:
        names = ", ".join(fields)
        raise ValueError(f"{kind.__name__} has settings ({names}) but is not a dataclass; put @dataclass above it")


def take_step(method: Method, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return ``method.step(learner, batch)``, with clear errors for frequent mistakes in methods of users."""
    try:
        result: Any = method.step(learner, batch)
    except RuntimeError as error:
        if batch.x.dtype != torch.uint8 or not any(word in str(error) for word in ("Byte", "unsigned char")):
            raise
        raise RuntimeError(f"{error}. Images are uint8; learner.augment(batch.x) returns inputs") from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(
            f"{type(method).__name__}.step returns a {type(result).__name__}; it must return the loss and the columns "
            'for the buffer: return loss.detach(), {"logits": logits.detach()}, or {} if there are none'
        )
    loss, columns = result
    return loss, columns
