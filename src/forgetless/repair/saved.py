"""A network of the user's own code with its weights in a file: load it, read examples for it, save it."""

import inspect
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from forgetless.config import catalogue
from forgetless.data.readers.examples import TENSOR_FILES, image_files, read_tensors
from forgetless.data.readers.images import decode
from forgetless.memory.batch import LABELS
from forgetless.repair.weights import load_weights, read_weights

FILE = "model.safetensors"


@final
class SavedNetwork:
    """A network that ``package.module:object`` returns, with the weights of a file.

    Args:
        path: Where the network is defined: a class or function that is called without arguments, or the network.
        file: The weights; see ``read_weights``.
        size: Images are resized to ``size`` × ``size`` pixels. Default: they must have one size.
    """

    loss = None  # cross-entropy

    def __init__(self, path: str, file: Path, size: int | None = None) -> None:
        self.model = build(path)
        self.size = size
        self.classes: list[str] = []  # their names, where the examples are images in folders
        load_weights(self.model, read_weights(file, "after"), "after")

    def weights(self, before: Path) -> dict[str, Tensor]:
        """Return the weights in another file."""
        return read_weights(before, "before")

    def read_examples(self, path: Path) -> dict[str, Tensor]:
        """Return the examples of a file of tensors, or of images in one folder per class, scaled to [0, 1]."""
        if path.is_dir():
            files, labels, classes = image_files(path)
            images = decode(files, self.size).float() / 255
            self._check_classes(images, classes)
            self.classes = classes
            return {"x": images, "y": labels}
        if path.suffix in TENSOR_FILES:
            return self._named(read_tensors(path))
        raise ValueError(
            f"examples is {str(path)!r}; for a network of your own it must be a folder of images with one folder per "
            f"class, or a file with x and y ({', '.join(TENSOR_FILES)})"
        )

    def save(self, folder: Path) -> None:
        """Write the weights to a folder; tied weights are there under each of their names."""
        state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.model.state_dict().items()}
        save_file(state, folder / FILE, metadata={"format": "pt"})

    def _named(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the columns; a sole one besides the labels is x, unless the network has an argument of its name."""
        inputs = [name for name in columns if name not in LABELS]
        if len(inputs) != 1 or inputs[0] in inspect.signature(self.model.forward).parameters:
            return columns
        return {"x" if name in inputs else name: column for name, column in columns.items()}

    @torch.no_grad()
    def _check_classes(self, images: Tensor, classes: list[str]) -> None:
        """Raise ``ValueError`` unless there is a folder for each output: otherwise the labels would be wrong."""
        self.model.eval()
        try:
            outputs = self.model(images[:1]).shape[1]
        except RuntimeError as error:
            shape = "×".join(map(str, images.shape[1:]))
            raise ValueError(
                f"examples has images of {shape}, which do not fit {type(self.model).__name__}: {error}; --size "
                "resizes them, and a file of tensors holds inputs of any kind"
            ) from error
        if outputs != len(classes):
            raise ValueError(
                f"examples has {len(classes)} folders of classes; the network has {outputs} outputs, so there must be "
                "a folder for each (it may be empty), in their alphabetical order"
            )


def build(path: str) -> nn.Module:
    """Return the network that ``package.module:object`` is or returns; errors say what is wrong with the path."""
    if not {":", "."} & set(path):
        raise ValueError(
            f"model is {path!r}; it must be package.module:object, a class or function that returns the network"
        )
    found: Any = catalogue.load("model", path)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ValueError(f"model {path!r} is a {type(found).__name__}; it must be a class, a function or a network")
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise ValueError(
                f"model {path!r} is called without arguments, but: {error}; write a function that returns the network"
            ) from None
        found = found()
    if not isinstance(found, nn.Module):
        raise ValueError(f"model {path!r} returned a {type(found).__name__}; it must return a torch.nn.Module")
    return found
