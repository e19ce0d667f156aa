"""Read labelled examples from a file of tensors or texts, or from a folder of images."""

import csv
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from forgetless.data.readers.files import UNREADABLE, DataError
from forgetless.data.readers.images import class_folders, labelled_files

TENSOR_FILES = (".npz", ".pt", ".pth", ".safetensors")
TEXT_FILES = (".csv", ".jsonl")
UNREADABLE_TENSORS: tuple[type[Exception], ...] = (SafetensorError, pickle.UnpicklingError, *UNREADABLE)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the named tensors of a .npz, .pt or .safetensors file; reading executes no code.

    A .pt file may also hold the pair ``(x, y)``. Numbers of 64 bits become float32, as networks expect them.
    """
    try:
        if file.suffix == ".npz":
            with numpy.load(file, allow_pickle=False) as arrays:
                found: Any = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif file.suffix == ".safetensors":
            found = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE_TENSORS as error:
        raise DataError(
            f"examples: {file} cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
    if isinstance(found, tuple | list) and len(found) == 2:
        found = dict(zip(("x", "y"), found, strict=True))
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"examples: {file} must hold tensors named x and y")
    return {name: value.float() if value.dtype == torch.float64 else value for name, value in found.items()}


def read_texts(file: Path, columns: Sequence[str] = ("text", "label")) -> list[list[str]]:
    """Return these columns of a .csv or .jsonl file, as written."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream)) if file.suffix == ".csv" else _json_lines(stream)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise DataError(f"examples: {file} is not {file.suffix[1:]}: {error}") from None
    for number, row in enumerate(rows, start=1):
        absent = [name for name in columns if not isinstance(row, dict) or row.get(name) in (None, "")]
        if absent:
            needs = " and ".join(columns)
            raise DataError(f"examples: row {number} of {file} has no {absent[0]}; each needs {needs}")
    return [[str(row[name]) for row in rows] for name in columns]


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file that are not empty."""
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"examples: {file} is not text in UTF-8: {error}") from None


def image_files(folder: Path) -> tuple[list[Path], Tensor, list[str]]:
    """Return the images of ``folder/<class>``, their labels, and the classes in alphabetical order.

    A class without images has an empty folder, so that the labels of the others are right.
    """
    classes = class_folders(folder)
    files, labels = labelled_files(classes)
    if not files:
        raise DataError(f"examples is {str(folder)!r}, which holds no images in folders, one folder per class")
    return files, labels, [path.name for path in classes]


def _json_lines(stream: Any) -> list[Any]:
    return [json.loads(line) for line in stream if line.strip()]
