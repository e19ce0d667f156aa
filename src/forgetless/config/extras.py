"""Import packages that only some features need: the extras of forgetless. Imports no torch."""

from importlib import import_module
from typing import Any


def load_extra(module: str, extra: str, purpose: str) -> Any:
    """Return a module of an optional package; raise ``ImportError`` that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose}: pip install 'forgetless[{extra}]' ({error})") from None
