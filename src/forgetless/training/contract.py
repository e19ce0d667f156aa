"""The contract that every method keeps, as a function to run on your own: ``forgetless.check(MyMethod)``.

1. The loss of every step is finite, and a run moves the weights.
2. A step returns the columns that the method declares, and no others except ``logits``; one row per example.
3. Runs with the same seed end with the same weights, bit for bit.
4. A step makes no GPU-to-CPU sync.
5. Evaluation changes nothing.
6. Two instances share nothing.
7. FPF and k-FPF compose with it.
8. On a GPU, steps replayed as CUDA graphs learn the same as steps that are called.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forgetless.compute.engine import Engine
from forgetless.config import catalogue
from forgetless.data.stream import Split, Stream, Task
from forgetless.memory.buffer import Buffer
from forgetless.methods import Method
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import check_declaration, take_step
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.repair.settings import Finetune
from forgetless.training.evaluation import evaluate
from forgetless.training.events import Ended
from forgetless.training.loop import train
from forgetless.training.plain import flatten
from forgetless.training.settings import TrainSettings

SETTINGS = TrainSettings(epochs=2, batch=6, lr=0.05, replay=4, buffer=24)
REPAIRS = (Finetune(steps=2, groups="all", batch=4), Finetune.k_fpf(5, steps=2, groups="all", batch=4))

# What waits for a GPU: as operations of torch, and as calls where the CPU runs no such operation.
OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
CALLS = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.unique, torch.unique, torch.unique_consecutive)


class ContractError(AssertionError):
    """A method breaks the contract; the message says which rule and how."""


def check(make: Callable[[], Method] | Method | str) -> None:
    """Raise ``ContractError`` unless a method keeps the contract, which takes a second or two.

        forgetless.check(MyMethod)
        forgetless.check("my_module:MyMethod")

    Args:
        make: The method's class, a function that returns a new method, or its name on the command line.
    """
    if isinstance(make, str):
        check(catalogue.load("method", make))
        return
    if isinstance(make, Method):
        name = type(make).__name__
        raise ContractError(f"{name}(…) is one method; pass its class or a function that makes methods: check({name})")
    method = make()
    try:
        check_declaration(method)
    except ValueError as error:
        raise ContractError(str(error)) from None
    stream = _small_stream(method.scenarios[0])
    _check_steps_and_evaluation(method, stream)
    weights = _trained_weights(make(), stream)
    if _equal(weights, list(_network().parameters())):
        raise ContractError("1: no weight moved in a run: does step() call learner.update(loss)?")
    if not _equal(weights, _trained_weights(make(), stream)):
        raise ContractError("3: two runs with the same seed end with different weights")
    runs = [train(stream, make(), _network(), SETTINGS, seed=seed) for seed in (0, 1)]
    for _ in zip(*runs, strict=True):  # two runs that take turns must end as each does alone
        pass
    if not _equal(weights, list(runs[0].network.parameters())):
        raise ContractError("6: a second instance that trains at the same time changes what the first one learns")
    for finetune in REPAIRS:  # rule 7: neither run may raise an error
        _trained_weights(make(), stream, finetune=finetune)
    if torch.cuda.is_available():
        _check_replay(make, stream)


def _check_steps_and_evaluation(method: Method, stream: Stream) -> None:
    """Check rules 1, 2, 4 and 5: take a few steps by hand, then evaluate."""

    def snapshot() -> tuple[list[Tensor], list[bool]]:
        tensors = [*learner.network.state_dict().values(), *(buffer[name] for name in buffer.columns)]
        return [tensor.clone() for tensor in tensors], [module.training for module in learner.network.modules()]

    buffer = Buffer(SETTINGS.buffer, policy="balanced" if method.memory == "balanced" else "reservoir")
    learner = Learner(
        _network(), stream, lr=SETTINGS.lr, batch=SETTINGS.batch, replay=SETTINGS.replay, weight_decay=0.0,
        buffer=None if method.memory == "none" else buffer, engine=Engine(), seed=0,
    )  # fmt: skip
    method.begin(learner)
    for number, task in enumerate(stream.tasks):
        for x, y in zip(task.train.x[:18].split(6), task.train.y[:18].split(6), strict=True):
            columns = _checked_step(method, learner, Batch(x, y, number))
            if method.memory in ("reservoir", "balanced"):
                buffer.add({"x": x, "y": y} | {name: columns[name] for name in method.columns})
        method.end_task(learner, task, number)
    try:
        flatten(method.state_dict(learner), {})
    except TypeError as error:
        warnings.warn(f"runs of this method would have no checkpoints: {error}", stacklevel=3)
    tensors, modes = snapshot()
    first, second = evaluate(learner, method, stream), evaluate(learner, method, stream)
    tensors_after, modes_after = snapshot()
    if not _equal(tensors, tensors_after) or modes != modes_after or first != second:
        raise ContractError("5: evaluation changes the network, its mode, the buffer or the result of the next one")


def _checked_step(method: Method, learner: Learner, batch: Batch) -> dict[str, Tensor]:
    """Take a step, check rules 1, 2 and 4, and return its columns."""
    try:
        with detect_syncs() as syncs:
            loss, columns = take_step(method, learner, batch)
    except ValueError as error:
        raise ContractError(f"1: {error}") from error
    if syncs:
        causes = ", ".join(sorted(set(syncs)))
        raise ContractError(f"4: a step of task {batch.task + 1} makes a GPU-to-CPU sync: {causes}")
    if loss.ndim or not bool(loss.isfinite()):
        raise ContractError(f"1: the loss of a step is {loss}; it must be a single finite number")
    if method.memory in ("reservoir", "balanced") and (missing := set(method.columns) - set(columns)):
        raise ContractError(f"2: the step does not return the declared {', '.join(sorted(missing))}")
    if extra := set(columns) - set(method.columns) - {"logits"}:
        raise ContractError(f"2: the step returns {', '.join(sorted(extra))}, which is not declared in columns")
    for name, column in columns.items():
        if len(column) != len(batch.y) or column.requires_grad:
            raise ContractError(f"2: column {name!r} must hold a detached row for each of the {len(batch.y)} examples")
    return columns


def _check_replay(make: Callable[[], Method], stream: Stream) -> None:
    """Check rule 8."""
    runs = []
    for capture in (False, True):
        try:
            runs.append(_trained_weights(make(), stream, device="cuda", capture=capture, deterministic=True))
        except RuntimeError as error:
            raise ContractError(f"8: a step cannot be captured into a CUDA graph: {error}") from error
    if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*runs, strict=True)):
        raise ContractError("8: replayed as a CUDA graph it learns something else: change tensors only in place")


@contextmanager
def detect_syncs() -> Iterator[list[str]]:
    """Yield a list that collects what would be a GPU-to-CPU sync inside this context, also on a CPU."""
    operations, calls = _Operations(), _Calls()  # type: ignore[no-untyped-call]
    operations.found = calls.found = []
    with operations, calls:
        yield calls.found


class _Operations(TorchDispatchMode):
    found: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in OPERATIONS:
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    found: list[str]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CALLS:
            self.found.append(f"Tensor.{func.__name__}")
        elif func in (Tensor.__getitem__, Tensor.__setitem__):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices):
                self.found.append("a boolean mask as an index")
        return func(*args, **(kwargs or {}))


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _network() -> torch.nn.Module:
    return with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)


def _trained_weights(method: Method, stream: Stream, **changes: Any) -> list[Tensor]:
    """Return the weights after a run."""
    *_, last = train(stream, method, _network(), SETTINGS, **changes)
    assert isinstance(last, Ended)
    return [parameter.detach() for parameter in last.result.network.parameters()]


def _small_stream(scenario: str) -> Stream:
    """Return a stream of three tasks with 2×2 images: of two new classes each, or of the same six."""
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for number in range(3):
        classes = tuple(range(2 * number, 2 * number + 2)) if scenario == "class" else tuple(range(6))
        y = torch.tensor(classes).repeat(24 // len(classes))[torch.randperm(24, generator=generator)]
        x = (32 * y[:, None, None, None] + torch.randint(32, (24, 1, 2, 2), generator=generator)).to(torch.uint8)
        tasks.append(Task(Split(x, y), Split(x[:12], y[:12]), classes))
    return Stream("small", tuple(tasks), 6, scenario)
