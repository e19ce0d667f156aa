"""The end of a stream: what a method does there, and the accuracies if the stream ended after an earlier task."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from forgetless.methods import Method
from forgetless.repair.finetune import NonFiniteError
from forgetless.training.evaluation import Accuracies, evaluate
from forgetless.training.events import Event, Stepped
from forgetless.training.plain import copied
from forgetless.training.state import RunState


def finish_method(run: RunState, *, resumable: bool) -> Generator[Event]:
    """Let the method finish. With ``resumable``, states may be saved between the parts of its work."""
    if not has_finish(run.method):
        return
    parts = run.method.finish(run.learner)
    for _ in parts if isinstance(parts, Iterator) else ():
        run.finishing = run.resumable = resumable
        yield Stepped(run.position.step, run.position.task + 1, run.position.epoch + 1)
        run.resumable = False
    run.finishing = False
    if not all(bool(parameter.isfinite().all()) for parameter in run.network.parameters()):
        raise NonFiniteError(
            f"the weights became infinite or NaN in finish() of {type(run.method).__name__}; "
            "try a smaller learning rate"
        )


def has_finish(method: Method) -> bool:
    """Return whether the method does anything at the end of a stream."""
    return type(method).finish is not Method.finish


def method_state(run: RunState) -> dict[str, Any]:
    """Return a copy of the method's state, or raise ``ValueError`` if it cannot be restored after ``finish()``."""
    try:
        state: dict[str, Any] = copied(run.method.state_dict(run.learner))
    except TypeError as error:
        raise ValueError(f"anytime is True, but finish() of the method cannot be undone: {error}") from error
    return state


def evaluate_as_if_ended(run: RunState) -> Generator[Event, None, Accuracies]:
    """Return the accuracies that a stream ending after this task would have. The run itself is left unchanged."""
    learner, method, engine = run.learner, run.method, run.engine
    with run.clock.phase("evaluate"):
        weights = {name: tensor.detach().clone() for name, tensor in run.network.state_dict().items()}
        gathered = method_state(run) if has_finish(method) else None
        random_state, ledger, finetuned = engine.state_dict(), learner.ledger.state_dict(), learner.finetuned
        yield from finish_method(run, resumable=False)
        if run.settings.finetune is not None:
            yield from run.repair.run(run.position.step, run.position.task + 1, run.position.epoch + 1)
        accuracies = evaluate(learner, method, run.stream)
        run.network.load_state_dict(weights)
        if gathered is not None:
            method.load_state_dict(learner, gathered)
            engine.discard_graphs("train")  # its captured graphs hold the tensors that were replaced
        engine.load_state_dict(random_state)
        learner.ledger.load_state_dict(ledger)
        learner.finetuned = finetuned
    return accuracies
