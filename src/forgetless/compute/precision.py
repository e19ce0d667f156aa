"""Compute in fp32, tf32 or bf16: which device supports which, torch's switches, and weights in bf16."""

import platform
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from forgetless.config.catalogue import PRECISIONS
from forgetless.config.fields import check_value


def has_bf16() -> bool:
    """Return whether this CPU has bfloat16 instructions. Without them oneDNN computes in bf16 slower than in fp32."""
    if platform.machine() in ("x86_64", "AMD64"):
        checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # not every version of torch has the second
        return any(getattr(torch.cpu, name, lambda: False)() for name in checks)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def check_precision(precision: str, device: torch.device) -> None:
    """Raise an error unless the device supports the precision at full speed."""
    check_value("precision", precision, str, choices=PRECISIONS)
    if device.type != "cpu":
        return
    if precision == "tf32":
        raise ValueError("precision is 'tf32', which needs a GPU; on a CPU use fp32, or bf16 if it has instructions")
    if precision == "bf16" and not has_bf16():
        raise ValueError("precision is 'bf16', but this CPU has no instructions for it; use fp32")


@contextmanager
def switched(switches: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set global switches of torch, each an object, an attribute and its value, and restore them on leaving."""
    before = [getattr(switch, name) for switch, name, _ in switches]
    try:
        for switch, name, value in switches:
            setattr(switch, name, value)
        yield
    finally:
        for (switch, name, _), value in zip(switches, before, strict=True):
            setattr(switch, name, value)


def cuda_switches(precision: str, *, deterministic: bool) -> list[tuple[Any, str, Any]]:
    """Return torch's switches of precision and determinism on CUDA."""
    matmul, tf32 = torch.backends.cuda.matmul, precision != "fp32"
    cudnn: Any = torch.backends.cudnn
    # On an H200 cuDNN's heuristics chose as well as its benchmark did, which takes seconds for every new shape.
    switches = [(cudnn, "benchmark", False), (cudnn, "deterministic", deterministic)]
    if not hasattr(matmul, "fp32_precision"):  # before torch 2.9
        return [*switches, (matmul, "allow_tf32", tf32), (cudnn, "allow_tf32", tf32)]
    value = "tf32" if tf32 else "ieee"
    return [*switches, (matmul, "fp32_precision", value), (cudnn.conv, "fp32_precision", value)]


@final
class Bf16Weights:
    """Casts the matrices and kernels of a network to bf16 for a call, all at once instead of one kernel each."""

    def __init__(self, persistent: Callable[[Hashable, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]) -> None:
        self._persistent = persistent  # ``Engine.persistent``
        self._others: dict[str, Tensor] = {}  # copies of the weights that a finetuning leaves alone

    def call(self, network: nn.Module, x: Tensor, **arguments: Any) -> Tensor:
        """Return ``network(x, **arguments)``, computed in bf16, as fp32."""
        weights = _weights(network)
        cast = {name: self._others[name] for name in weights if name in self._others}
        trained = {name: weight for name, weight in weights.items() if name not in cast and weight.requires_grad}
        frozen = {name: weight for name, weight in weights.items() if name not in cast and not weight.requires_grad}
        copies = _Cast.apply(*trained.values()) if trained else ()  # type: ignore[no-untyped-call]
        cast |= zip(trained, copies, strict=True)
        if frozen:
            with torch.no_grad():
                cast |= zip(frozen, _to_bf16(list(frozen.values())), strict=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            output: Tensor = functional_call(network, cast, (x,), arguments).float()
        return output

    @contextmanager
    def others_cast_once(self, network: nn.Module, names: Collection[str]) -> Iterator[None]:
        """Cast the weights that are not in ``names`` once for all calls within; they must not change."""
        others = {name: weight for name, weight in _weights(network).items() if name not in names}
        if others:
            self._others = self._persistent(
                ("others", id(network), *others),
                lambda: {name: torch.empty_like(weight, dtype=torch.bfloat16) for name, weight in others.items()},
            )
            with torch.no_grad():
                torch._foreach_copy_(list(self._others.values()), list(others.values()))
        try:
            yield
        finally:
            self._others = {}


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the matrices and kernels that are cast to bf16."""
    return {n: p for n, p in network.named_parameters() if p.ndim > 1 and p.dtype == torch.float32}


def _to_bf16(tensors: list[Tensor]) -> list[Tensor]:
    """Return copies in bf16, made by one kernel."""
    copies = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


class _Cast(torch.autograd.Function):
    """Casts all weights to bf16 and, in the backward pass, all gradients to fp32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights  # for their memory format
        return tuple(_to_bf16(list(weights)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        cast = [torch.empty_like(weight) for weight in ctx.weights]
        torch._foreach_copy_(cast, list(gradients))
        return tuple(cast)
