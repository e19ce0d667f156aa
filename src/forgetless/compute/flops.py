"""Count the FLOPs of a call with torch's counter.

One multiply-add is 2 FLOPs. Matrix products, convolutions and attention count; elementwise operations do not. Only what
is computed counts: a frozen layer has no weight gradient, there is no backward pass below the lowest trained layer, and
the first layer has no input gradient. The paper's tables take full training as 3 times the forward pass, which includes
that input gradient: 0.1 % more than is computed for ResNet-18, 41 % for the MLP.
The importance of parameters in oEWC and MAS is counted in the paper's way too.

``_CORRECTIONS`` repairs torch's counter. It multiplies the weight gradient of a grouped convolution by the number of
groups. It leaves out attention on a CPU, a product fused with its ReLU, matrix-vector products and recurrent layers.
"""

import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

SMALL = 1_000_000  # a network with at most this many parameters is computed on the CPU to be counted


def count(call: Callable[[], object]) -> int:
    """Return the FLOPs of all that ``call()`` runs. On meta tensors nothing is computed, only counted."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused layers hide matrix products from the counter
    try:
        with _no_compiler(), FlopCounterMode(display=False, custom_mapping=_CORRECTIONS) as counter:
            call()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return int(counter.get_total_flops())


def forward_flops(model: nn.Module, x: Tensor) -> int:
    """Return the FLOPs of ``model(x)`` without gradients, counted on a copy of the model."""
    with _copies(model, x) as (network, inputs), torch.no_grad():
        return count(lambda: network(inputs))


def training_flops(model: nn.Module, x: Tensor) -> int:
    """Return the FLOPs of the forward and backward pass of ``model(x)``, counted on a copy of the model.

    The ``requires_grad`` flags decide what is computed. Within ``only(model, names)`` the result is the cost of one
    finetuning step.
    """
    with _copies(model, x) as (network, inputs):

        def step() -> None:
            loss = network(inputs).sum()
            if loss.requires_grad:  # it does not where only running statistics are finetuned
                loss.backward()

        return count(step)


@contextmanager
def _copies(model: nn.Module, x: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield a copy of the model and its input to count on: meta tensors, or zeros on the CPU for a small network.

    For linear layers on the meta device torch imports its compiler, which takes longer than a small network does.
    """
    if sum(parameter.numel() for parameter in model.parameters()) > SMALL:
        yield copy.deepcopy(model).to("meta"), x.detach().to("meta")
    else:
        with torch.random.fork_rng(devices=()):  # dropout draws
            yield copy.deepcopy(model).to("cpu"), torch.zeros(x.shape, dtype=x.dtype)


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Compile nothing while counting: torch would silently never compile it later.

    As long as nothing is compiled, torch's compiler is not imported either, which takes seconds. torch asks the
    counter's function for its version without the compiler; here that is the function itself.
    """
    if "torch._dynamo" in sys.modules:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile")  # raised by the counter's hooks
            yield
        return
    mode: Any = getattr(flop_counter, "_FlopCounterMode", FlopCounterMode)
    function = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if function is None:
        yield
        return
    setattr(function, "__dynamo_disable", function)
    try:
        yield
    finally:
        delattr(function, "__dynamo_disable")


def _convolution_backward(
    grad_out: list[int], x: list[int], weight: list[int], *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """Return the forward cost for each gradient computed, whatever the number of groups."""
    transposed, mask = args[4], args[7]
    forward: int = flop_counter.conv_flop_count(x, weight, grad_out, transposed=transposed)
    return forward * (int(mask[0]) + int(mask[1]))


def _lstm(x: list[int], first: list[int], second: list[int], *args: Any, **kwargs: Any) -> int:
    """Return the cost of one layer in one direction on a CPU: each element passes through both matrices."""
    return 2 * math.prod(x[:-1]) * (math.prod(first) + math.prod(second))


def _recurrent(x: list[int], weights: list[list[int]], *args: Any, **kwargs: Any) -> int:
    """Return the cost of all layers of a recurrent network on a GPU."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(weight) for weight in weights if len(weight) > 1)


_CORRECTIONS = {
    torch.ops.aten.convolution_backward: _convolution_backward,
    torch.ops.aten._addmm_activation: lambda bias, a, b, *_, **__: flop_counter.mm_flop(a, b),
    torch.ops.aten.mv: lambda matrix, vector, *_, **__: 2 * math.prod(matrix),
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _lstm(*args, **kwargs),
    torch.ops.aten._cudnn_rnn: _recurrent,
    torch.ops.aten._cudnn_rnn_backward: lambda *args, **kwargs: 2 * _recurrent(*args, **kwargs),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: (
        flop_counter.sdpa_flop_count(query, key, value)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda gradient, query, key, value, *_, **__: (
        flop_counter.sdpa_backward_flop_count(gradient, query, key, value)
    ),
}
