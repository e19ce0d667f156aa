"""FLOPs of one call, by torch's own counter, and a ledger that adds them up by phase.

One multiply-add is 2 FLOPs; matrix products, convolutions and attention count, elementwise work does not. What is not
computed is not counted: a frozen layer has no weight gradient, below the lowest trained layer there is no backward
pass, and the first layer has no gradient of its input. The paper's tables take full training as 3 times the forward
pass (``nominal_flops``), which counts that last one too: 0.1 % more than what is computed for ResNet-18, 41 % for the
MLP. So is counted what oEWC and MAS spend on the importance of parameters.

Three corrections of torch's counter: the weight gradient of a grouped convolution, which it multiplies by the number of
groups, and two that it leaves out, attention on the CPU and a product with its ReLU.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

SMALL = 1_000_000  # parameters of a network that is computed rather than only counted


def count(call: Callable[[], object]) -> int:
    """FLOPs of everything ``call()`` runs, forward and backward. On meta tensors nothing is computed, only counted."""
    with _no_fast_path(), _no_compiler(), FlopCounterMode(display=False, custom_mapping=_CORRECTIONS) as counter:
        call()
    total: int = counter.get_total_flops()
    return total


def forward_flops(model: nn.Module, x: Tensor) -> int:
    """FLOPs of ``model(x)`` without gradients; counted on a copy."""
    with _copies(model, x) as (network, inputs), torch.no_grad():
        return count(lambda: network(inputs))


def training_flops(model: nn.Module, x: Tensor) -> int:
    """FLOPs of the forward and backward pass for ``model(x)``, by the ``requires_grad`` flags as they are.

    Within ``only(model, names)`` that is the cost of one step of finetuning. Counted on a copy.
    """
    with _copies(model, x) as (network, inputs):

        def step() -> None:
            loss = network(inputs).sum()
            if loss.requires_grad:  # else statistics alone are finetuned
                loss.backward()

        return count(step)


def nominal_flops(model: nn.Module, x: Tensor) -> int:
    """Full training by the paper's convention: backward = 2 × forward, 6 FLOPs per multiply-add and example."""
    return 3 * forward_flops(model, x)


class Ledger:
    """FLOPs by phase: each entry is the cost of one call and how often it was made."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[int, int]] = {}

    def add(self, phase: str, flops: int, calls: int = 1) -> None:
        if flops < 0 or calls < 0:
            raise ValueError(f"phase {phase!r}: flops is {flops} and calls is {calls}; neither can be negative")
        costs = self._calls.setdefault(phase, {})
        costs[flops] = costs.get(flops, 0) + calls

    def flops(self, phase: str | None = None) -> int:
        """FLOPs of a phase, or of all."""
        phases = self._calls if phase is None else {phase: self._calls.get(phase, {})}
        return sum(flops * calls for costs in phases.values() for flops, calls in costs.items())

    def to_dict(self) -> dict[str, int]:
        return {phase: self.flops(phase) for phase in self._calls}

    def state_dict(self) -> dict[str, Any]:
        return {phase: [[flops, calls] for flops, calls in costs.items()] for phase, costs in self._calls.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._calls = {phase: dict(costs) for phase, costs in state.items()}


_KNOWN: dict[Hashable, dict[object, int]] = {}


def known(key: Hashable) -> dict[object, int]:
    """Costs counted in this process already, for runs that compute the same; counting a step takes some 0.15 s."""
    return _KNOWN.setdefault(key, {})


@contextmanager
def _copies(model: nn.Module, x: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """To count on: on the meta device, where nothing is computed; a small network's on the CPU.

    For linear layers on the meta device torch imports its compiler, which takes longer than a small network does.
    """
    if sum(parameter.numel() for parameter in model.parameters()) > SMALL:
        yield copy.deepcopy(model).to("meta"), x.detach().to("meta")
    else:
        with torch.random.fork_rng(devices=()):  # dropout draws
            yield copy.deepcopy(model).to("cpu"), torch.zeros(x.shape, dtype=x.dtype)


@contextmanager
def _no_fast_path() -> Any:
    """The fused layers of ``nn.TransformerEncoder`` in evaluation mode hide their matrix products from the counter."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Nothing is compiled while it is counted: torch would not compile it later either, without a word.

    As long as nothing was compiled, torch need not import its compiler, which takes seconds, to keep it out of this.
    The counter's own function carries what torch has made of it for that; here, for the time being, itself.
    """
    if "torch._dynamo" in sys.modules:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile")  # of the counter's hooks
            yield
        return
    mode: Any = getattr(flop_counter, "_FlopCounterMode", FlopCounterMode)
    function = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if function is None:
        yield
        return
    setattr(function, _DISABLED, function)
    try:
        yield
    finally:
        delattr(function, _DISABLED)


def _convolution_backward(
    grad_out: list[int], x: list[int], weight: list[int], *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """Each of the gradients of input and weight costs what the forward pass costs, whatever the number of groups."""
    transposed, mask = args[4], args[7]
    forward: int = flop_counter.conv_flop_count(x, weight, grad_out, transposed=transposed)
    return forward * (int(mask[0]) + int(mask[1]))


def _attention(query: list[int], key: list[int], value: list[int], *args: Any, **kwargs: Any) -> int:
    flops: int = flop_counter.sdpa_flop_count(query, key, value)
    return flops


def _attention_backward(
    grad_out: list[int], query: list[int], key: list[int], value: list[int], *args: Any, **kwargs: Any
) -> int:
    flops: int = flop_counter.sdpa_backward_flop_count(grad_out, query, key, value)
    return flops


def _product(bias: list[int], a: list[int], b: list[int], *args: Any, **kwargs: Any) -> int:
    flops: int = flop_counter.mm_flop(a, b)
    return flops


def _matrix_vector(matrix: list[int], vector: list[int], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(matrix)


def _lstm(x: list[int], first: list[int], second: list[int], *args: Any, **kwargs: Any) -> int:
    """One layer in one direction on a CPU: every element of a sequence goes through both of its matrices."""
    return 2 * math.prod(x[:-1]) * (math.prod(first) + math.prod(second))


def _recurrent(x: list[int], weights: list[list[int]], *args: Any, **kwargs: Any) -> int:
    """All layers on a GPU, of any kind."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(weight) for weight in weights if len(weight) > 1)


def _twice(forward: Callable[..., int]) -> Callable[..., int]:
    """Backward, for the inputs and for the weights."""
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


_DISABLED = "__dynamo_disable"
_CORRECTIONS = {
    torch.ops.aten.convolution_backward: _convolution_backward,
    torch.ops.aten._addmm_activation: _product,
    torch.ops.aten.mv: _matrix_vector,
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _twice(_lstm),
    torch.ops.aten._cudnn_rnn: _recurrent,
    torch.ops.aten._cudnn_rnn_backward: _twice(_recurrent),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
