"""Look inside modules: unwrap them, recognise kinds of layers, detect compiled and hooked ones, join names."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel``."""
    while True:
        children = dict(model.named_children())
        if type(model).__name__ == "OptimizedModule" and "_orig_mod" in children:
            model = children["_orig_mod"]
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = children["module"]
        else:
            return model


def compiled(model: nn.Module) -> bool:
    """Return whether the model or a part of it is compiled, by ``torch.compile`` or its own ``compile()``."""
    return any(
        type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        for module in model.modules()
    )


def uncompiled() -> AbstractContextManager[Any]:
    """Return a context without ``torch.compile``, which would compile again for each set of flags and modes."""
    # Importing torch._dynamo takes seconds, and without it nothing is compiled.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def without_reducer(model: nn.Module) -> nn.Module:
    """Return the module to call for a forward pass without ``backward()``, for which DDP would wait."""
    waits = any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules())
    return unwrap(model) if waits else model


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether the network has a batch norm."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a normalisation layer: one of torch's or a subclass, or a leaf that looks like one."""
    if parametrize.is_parametrized(module) or type(module).__module__.startswith("torch.nn.utils"):
        return False  # as the module of a weight's spectral norm
    if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return True
    if "norm" not in type(module).__name__.lower() or is_composite(module):
        return False
    return all(sum(size > 1 for size in p.shape) <= 1 for p in module.parameters(recurse=False))


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer or a convolution, maybe with adapters."""
    layer = _adapted(module) or module
    kinds = nn.Linear | nn.Bilinear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    return isinstance(layer, kinds) or "linear" in type(layer).__name__.lower()


def is_composite(module: nn.Module) -> bool:
    """Return whether a module contains others; a layer with a parametrization or adapters is one layer."""
    return _adapted(module) is None and any(name != "parametrizations" for name, _ in module.named_children())


def has_parameters(module: nn.Module, recurse: bool = False) -> bool:
    """Return whether a module has parameters; with ``recurse``, those of the modules inside it count."""
    return any(True for _ in module.parameters(recurse))


def generates(model: nn.Module) -> bool:
    """Return whether a network is a causal language model: it generates tokens, and has no encoder."""
    network = unwrap(model)
    if callable(adapted := getattr(network, "get_base_model", None)):  # peft's wrappers all have a ``generate``
        network = adapted()
    encodes = getattr(getattr(network, "config", None), "is_encoder_decoder", False)
    return callable(getattr(network, "generate", None)) and not encodes


def vocabulary(model: nn.Module) -> int | None:
    """Return the number of tokens for which a network has an embedding; None if it does not tell."""
    embeddings = getattr(unwrap(model), "get_input_embeddings", None)
    weight = getattr(embeddings() if callable(embeddings) else None, "weight", None)
    return len(weight) if isinstance(weight, Tensor) else None


def padding_token(model: nn.Module) -> int:
    """Return the token with which a network's inputs are padded, as its configuration says; 0 if it has none."""
    token, count = getattr(getattr(unwrap(model), "config", None), "pad_token_id", None), vocabulary(model)
    return token if isinstance(token, int) and token >= 0 and (count is None or token < count) else 0


def joined(path: str, name: str) -> str:
    """Return the name in the network of what the module at ``path`` calls ``name``."""
    return f"{path}.{name}" if path else name


def hooked(module: nn.Module) -> bool:
    """Return whether the module has forward or backward hooks."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(map(bool, hooks))


def _adapted(module: nn.Module) -> nn.Module | None:
    """Return the layer inside peft's adapters, or next to the copy that is trained in its place."""
    children = dict(module.named_children())
    layer = children.get("base_layer", children.get("original_module"))
    return None if layer is None or is_composite(layer) else layer
