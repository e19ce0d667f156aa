"""What every method keeps to, as a function to run on one's own: ``forgetless.check(MyMethod)``.

1. the loss of every step is finite
2. a step returns the columns the method declares, and beside them only ``logits``, a row for each example
3. the same seed gives the same weights, bit for bit
4. no read by the host in a step
5. evaluation changes nothing
6. two instances share nothing
7. FPF and k-FPF compose with it
8. where there is a GPU: replayed as CUDA graphs, it learns what it learns when each step is called
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forgetless.compute.engine import Engine
from forgetless.config import catalogue
from forgetless.data.stream import Split, Stream, Task
from forgetless.methods import Method
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import check_declaration, take_step
from forgetless.networks import mlp
from forgetless.repair.buffer import Buffer
from forgetless.repair.settings import Finetune
from forgetless.training.evaluation import evaluate
from forgetless.training.events import Ended
from forgetless.training.loop import train, with_seed
from forgetless.training.state import check_plain

# What makes the host wait for a GPU: as torch's operations, and as calls, of which a CPU makes no such operation.
OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
CALLS = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.unique, torch.unique, torch.unique_consecutive)


class ContractError(AssertionError):
    """A method breaks the contract; says which part and how."""


class HostReads:
    """Within, writes down for what the host would wait for a GPU, on a CPU too."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = ExitStack()

    def __enter__(self) -> HostReads:
        self._modes.enter_context(_Operations(self.found))
        self._modes.enter_context(_Calls(self.found))
        return self

    def __exit__(self, *error: object) -> None:
        self._modes.close()


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in OPERATIONS:
            self._found.append(func.name())
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CALLS:
            self._found.append(f"Tensor.{func.__name__}")
        elif func in (Tensor.__getitem__, Tensor.__setitem__):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts):
                self._found.append("a mask of true and false as an index")
        return func(*args, **(kwargs or {}))


def check(make: Callable[[], Method] | Method | str) -> None:
    """Raise ``ContractError`` unless the methods that ``make()`` gives keep the contract; takes a second or two.

    A name, as of the command line, goes too: check("module:Method").
    """
    if isinstance(make, str):
        check(catalogue.load("method", make))
        return
    if isinstance(make, Method):
        name = type(make).__name__
        raise ContractError(f"{name}(…) is a method; give what makes methods, its class or a function: check({name})")
    if unmade := sorted(getattr(make, "__abstractmethods__", ())):
        raise ContractError(f"{getattr(make, '__name__', make)} does not define {', '.join(unmade)}")
    method = make()
    if not isinstance(method, Method):
        raise ContractError(f"{make!r} makes {type(method).__name__}, which is not a forgetless.Method")
    try:
        check_declaration(method)
    except ValueError as error:
        raise ContractError(str(error)) from None
    stream = _small_stream(method.scenarios[0])
    _check_steps(make(), stream)
    weights = _weights(make(), stream)
    if any(not tensor.isfinite().all() for tensor in weights):
        raise ContractError("1: the weights are not finite after a run with lr 0.05")
    if all(torch.equal(one, other) for one, other in zip(weights, _network().parameters(), strict=True)):
        raise ContractError("1: no weight has moved in a run: does step() call learner.update(loss)?")
    again = _weights(make(), stream)
    if not all(torch.equal(one, other) for one, other in zip(weights, again, strict=True)):
        raise ContractError("3: two runs with the same seed end with different weights")
    _check_shared(make, stream, weights)
    for finetune in (Finetune(steps=2, groups="all", batch=4), Finetune.k_fpf(5, steps=2, groups="all", batch=4)):
        if any(not tensor.isfinite().all() for tensor in _weights(make(), stream, finetune)):
            raise ContractError(f"7: the weights are not finite after finetuning, every={finetune.every}")

    if torch.cuda.is_available():
        _check_replay(make, stream)


def _check_replay(make: Callable[[], Method], stream: Stream) -> None:
    runs = []
    for capture in (False, True):
        try:
            runs.append(_weights(make(), stream, device="cuda", capture=capture, deterministic=True))
        except RuntimeError as error:
            raise ContractError(f"8: a step cannot be captured into a CUDA graph: {error}") from error
    for called, replayed in zip(*runs, strict=True):
        if not torch.allclose(called, replayed, rtol=1e-4, atol=1e-6):
            raise ContractError(
                "8: replayed as a CUDA graph it learns something else: a step may change only tensors, in their place"
            )


def _check_shared(make: Callable[[], Method], stream: Stream, alone: list[Tensor]) -> None:
    """Two runs in turns, a step of one and a step of the other, end as each does alone."""
    runs = [train(stream, make(), _network(), **_SETTINGS, seed=seed) for seed in (0, 1)]
    result = None
    for first, _ in zip(runs[0], runs[1], strict=True):
        result = first.result if isinstance(first, Ended) else result
    assert result is not None
    if not all(torch.equal(one, other) for one, other in zip(alone, result.network.parameters(), strict=True)):
        raise ContractError("6: a second instance at work beside it changes what the first one learns")


def _check_steps(method: Method, stream: Stream) -> None:
    buffer = Buffer(24, policy="balanced" if method.memory == "balanced" else "reservoir")
    learner = Learner(
        _network(), stream, lr=0.05, batch=6, replay=4, weight_decay=0.0, engine=Engine(), seed=0,
        buffer=None if method.memory == "none" else buffer,
    )  # fmt: skip
    method.begin(learner)
    for number, task in enumerate(stream.tasks):
        for start in range(0, 18, 6):
            batch = Batch(task.train.x[start : start + 6], task.train.y[start : start + 6], number)
            with HostReads() as reads:
                loss, columns = _stepped(method, learner, batch)
            if reads.found:
                raise ContractError(
                    f"4: the host waits in a step of task {number + 1}: {', '.join(sorted(set(reads.found)))}"
                )
            if loss.ndim or not bool(loss.isfinite()):
                raise ContractError(f"1: the loss of a step is {loss}; it must be one finite number")
            if method.memory in ("reservoir", "balanced") and (missing := set(method.columns) - set(columns)):
                raise ContractError(f"2: the step does not return the declared {', '.join(sorted(missing))}")
            extra = set(columns) - set(method.columns) - {"logits"}
            if extra:
                raise ContractError(f"2: the step returns {', '.join(sorted(extra))}, which is not declared in columns")
            for name, column in columns.items():
                if len(column) != 6 or column.requires_grad:
                    raise ContractError(f"2: column {name!r} must hold a detached row for each of the 6 examples")
            if method.memory in ("reservoir", "balanced"):
                buffer.add({"x": batch.x, "y": batch.y} | {name: columns[name] for name in method.columns})
        method.end_task(learner, task, number)
    before = [tensor.clone() for tensor in learner.network.state_dict().values()]
    modes = [module.training for module in learner.network.modules()]
    held = {name: buffer[name].clone() for name in buffer.columns}
    try:
        check_plain(method.state_dict(learner))
    except TypeError as error:
        warnings.warn(f"it would be trained without checkpoints: {error}", stacklevel=3)
    first = evaluate(learner, method, stream)
    second = evaluate(learner, method, stream)
    same = all(torch.equal(a, b) for a, b in zip(before, learner.network.state_dict().values(), strict=True))
    kept = all(torch.equal(buffer[name], column) for name, column in held.items())
    if not (same and kept) or first != second or modes != [module.training for module in learner.network.modules()]:
        raise ContractError(
            "5: evaluation changes the network, its mode, the buffer, or what the next evaluation finds"
        )


def _stepped(method: Method, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    try:
        return take_step(method, learner, batch)
    except ValueError as error:
        raise ContractError(f"1: {error}") from error


_SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 6, "lr": 0.05, "replay": 4, "buffer": 24}


def _network() -> torch.nn.Module:
    return with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)


def _weights(method: Method, stream: Stream, finetune: Finetune | None = None, **settings: Any) -> list[Tensor]:
    for event in train(stream, method, _network(), finetune=finetune, **_SETTINGS, **settings):
        if isinstance(event, Ended):
            return [parameter.detach() for parameter in event.result.network.parameters()]
    raise AssertionError("a run ends with Ended")


def _small_stream(scenario: str) -> Stream:
    """Three tasks of two classes (or of the same six), 2×2 images."""
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for number in range(3):
        classes = tuple(range(2 * number, 2 * number + 2)) if scenario == "class" else tuple(range(6))
        y = torch.tensor(classes).repeat(24 // len(classes))[torch.randperm(24, generator=generator)]
        x = (32 * y[:, None, None, None] + torch.randint(32, (24, 1, 2, 2), generator=generator)).to(torch.uint8)
        tasks.append(Task(Split(x, y), Split(x[:12], y[:12]), classes))
    return Stream("small", tuple(tasks), 6, scenario)
