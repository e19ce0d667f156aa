import importlib
import warnings

import pytest
from two_tasks import PROGRAMS


def integration(name, library):
    """Yield a module of forgetless.integrations, or skip if its library is missing; its import warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(library, reason=f"{library} is not installed")
        yield importlib.import_module(f"forgetless.integrations.{name}")


@pytest.fixture
def lightning():
    yield from integration("lightning", "lightning.pytorch")


@pytest.fixture
def huggingface():
    yield from integration("huggingface", "transformers")


@pytest.fixture
def avalanche(monkeypatch):
    pytest.importorskip("pytorchcv", reason="Avalanche is not installed; `make test-avalanche` does it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.syspath_prepend(str(PROGRAMS))
        importlib.import_module("torchvision_operators")
        yield importlib.import_module("forgetless.integrations.avalanche")
