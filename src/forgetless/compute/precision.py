"""Compute in fp32, tf32 or bf16: which device supports which, torch's switches, and weights in bf16."""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Iterator
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
def cuda_switches(precision: str, *, deterministic: bool) -> Iterator[None]:
    """Set torch's global switches of precision and determinism on CUDA, and restore them on leaving."""
    cudnn = torch.backends.cudnn
    benchmark, was_deterministic, tf32 = cudnn.benchmark, cudnn.deterministic, _get_tf32()
    _set_tf32(("ieee", "ieee") if precision == "fp32" else ("tf32", "tf32"))
    # On an H200 cuDNN's heuristics chose as well as its benchmark did, which takes seconds for every new shape.
    cudnn.benchmark, cudnn.deterministic = False, deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = benchmark, was_deterministic
        _set_tf32(tf32)


@contextmanager
def onednn_switch(*, enabled: bool) -> Iterator[None]:
    """Switch oneDNN off on a CPU if ``enabled`` is false, and restore torch's global switch on leaving."""
    switch: Any = torch.backends.mkldnn
    before = switch.enabled
    switch.enabled = before and enabled
    try:
        yield
    finally:
        switch.enabled = before


def _get_tf32() -> tuple[Any, Any]:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32  # before torch 2.9


def _set_tf32(values: tuple[Any, Any]) -> None:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = values  # type: ignore[attr-defined]
    else:
        allowed = [value == "tf32" if isinstance(value, str) else value for value in values]
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed


@final
class Bf16Weights:
    """Casts the matrices and kernels of a network to bf16 for a call, all at once instead of one kernel each."""

    def __init__(self, persistent: Callable[[Hashable, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]) -> None:
        self._persistent = persistent  # ``Engine.persistent``
        self._frozen: dict[str, Tensor] = {}

    def call(self, network: nn.Module, x: Tensor, **arguments: Any) -> Tensor:
        """Return ``network(x, **arguments)``, computed in bf16, as fp32."""
        trained, frozen = _weights(network)
        cast = {name: self._frozen[name] for name in frozen if name in self._frozen}
        frozen = {name: weight for name, weight in frozen.items() if name not in cast}
        copies = _Cast.apply(*trained.values()) if trained else ()  # type: ignore[no-untyped-call]
        cast |= zip(trained, copies, strict=True)
        if frozen:
            with torch.no_grad():
                cast |= zip(frozen, _to_bf16(list(frozen.values())), strict=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            output: Tensor = functional_call(network, cast, (x,), arguments).float()
        return output

    @contextmanager
    def frozen_cast_once(self, network: nn.Module) -> Iterator[None]:
        """Cast the weights that take no gradients once for all calls within; they must not change."""
        frozen = _weights(network)[1]
        if frozen:
            self._frozen = self._persistent(
                ("frozen", id(network), *frozen),
                lambda: {name: torch.empty_like(weight, dtype=torch.bfloat16) for name, weight in frozen.items()},
            )
            with torch.no_grad():
                torch._foreach_copy_(list(self._frozen.values()), list(frozen.values()))
        try:
            yield
        finally:
            self._frozen = {}


def _weights(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the matrices and kernels that are cast to bf16: those that take gradients, and those that do not."""
    weights = [(n, p) for n, p in network.named_parameters() if p.ndim > 1 and p.dtype == torch.float32]
    return {n: p for n, p in weights if p.requires_grad}, {n: p for n, p in weights if not p.requires_grad}


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
