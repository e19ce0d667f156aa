"""Read the weights of a finished network from a file or a folder, and match them with a network's tensors."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.data.readers.files import UNREADABLE
from forgetless.repair.groups import float_tensors

ENDINGS = (".safetensors", ".pt", ".pth", ".bin")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # of a Hugging Face folder, or <name>.index.json with shards
NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints of training libraries hold the weights
EXPECTED = "a state dict, a .safetensors, .pt or .pth file, or a Hugging Face folder"
UNREADABLE_WEIGHTS: tuple[type[Exception], ...] = (SafetensorError, *UNREADABLE)
SHOWN = 3  # tensors named in an error


def read_weights(source: Mapping[str, Any] | str | Path, setting: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict, of a file, or of a Hugging Face folder. Reading executes no code.

    Args:
        source: A state dict, a path to a .safetensors, .pt or .pth file, or a folder with ``model.safetensors``.
        setting: What errors call the source, such as ``before``.
    """
    if isinstance(source, Mapping):
        return _tensors(source, setting)
    if not isinstance(source, str | Path):
        raise TypeError(f"{setting} is a {type(source).__name__}; it must be {EXPECTED}")
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{setting} is {str(source)!r}, which does not exist; it must be {EXPECTED}")
    weights: dict[str, Tensor] = {}
    for file in _files(path, setting):
        weights |= _tensors(_read(file, setting), f"{setting} ({file})")
    return weights


def match(network: nn.Module, weights: Mapping[str, Tensor], setting: str) -> dict[str, Tensor]:
    """Return the weights of each parameter and float buffer of ``network``; raise ``ValueError`` if they do not fit.

    A prefix that all names share is removed if the network does not have it, such as ``module.`` of
    ``DistributedDataParallel``. A tied weight may have any of its names.
    """
    network = unwrap(network)
    tensors, names = float_tensors(network), _names(network)
    weights = _without_prefix(weights, network)
    aliases = {name: [alias for alias in names[id(tensor)] if alias in weights] for name, tensor in tensors.items()}
    matched = {name: weights[present[0]] for name, present in aliases.items() if present}
    known = {name for all_names in names.values() for name in all_names}
    differences = [
        f"{name} has shape {tuple(value.shape)} in {setting} and {tuple(tensors[name].shape)} in the network"
        for name, value in matched.items()
        if value.shape != tensors[name].shape
    ]
    differences += [f"{name} is missing from {setting}" for name in tensors if name not in matched]
    differences += [
        f"{name} is only in {setting}"
        for name, value in weights.items()
        if name not in known and value.is_floating_point()
    ]
    if differences:
        shown = "; ".join(differences[:SHOWN])
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise ValueError(
            f"{setting} is of another architecture than {type(network).__name__}: {shown}{more}; it must hold the same "
            "tensors in the same shapes"
        )
    for name, value in matched.items():
        if not bool(value.isfinite().all()):
            raise ValueError(f"{setting} holds NaN or infinity in {name}; it must be finite")
    return matched


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], setting: str) -> None:
    """Load matching weights into a network, with the counters of its layers."""
    matched = match(network, weights, setting)
    others = {name: value for name, value in _without_prefix(weights, network).items() if name not in matched}
    counters = {name: value for name, value in others.items() if not value.is_floating_point()}
    network.load_state_dict({**counters, **matched}, strict=False)


def _files(path: Path, setting: str) -> list[Path]:
    """Return the files that hold the weights at ``path``, which exists."""
    if not path.is_dir():
        if path.suffix not in ENDINGS:
            raise ValueError(f"{setting} is {str(path)!r}; its name must end in {', '.join(ENDINGS)}")
        return [path]
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").is_file():
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if absent := [shard for shard in shards if not (path / shard).is_file()]:
                raise ValueError(f"{setting} is {str(path)!r}, where the shard {absent[0]} is missing")
            return [path / shard for shard in shards]
    raise ValueError(f"{setting} is the folder {str(path)!r}, which holds neither {' nor '.join(WEIGHT_FILES)}")


def _read(file: Path, setting: str) -> Any:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{setting}: {file} holds more than tensors, so reading it could execute code; save model.state_dict()"
        ) from None
    except UNREADABLE_WEIGHTS as error:
        raise ValueError(f"{setting}: {file} cannot be read: {str(error).splitlines()[0]}") from None


def _tensors(state: Any, setting: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of the one inside a checkpoint."""
    named = state if isinstance(state, Mapping) else {}
    named = next((named[key] for key in NESTED if isinstance(named.get(key), Mapping)), named)
    tensors = {name: value.detach() for name, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError(f"{setting} holds no tensors by name; it must be {EXPECTED}")
    return tensors


def _without_prefix(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return the weights without the first part of their names, if all share it and the network has no such part."""
    first = f"{next(iter(weights)).partition('.')[0]}."
    known = any(name.startswith(first) for names in _names(network).values() for name in names)
    shared = not known and all(name.startswith(first) for name in weights)
    return {name.removeprefix(first) if shared else name: value for name, value in weights.items()}


def _names(network: nn.Module) -> dict[int, list[str]]:
    """Return all names of each parameter and buffer, by ``id``; a tied weight has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    return names
