from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two workers of two threads each are ten times slower

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])


class NoHostRead(TorchDispatchMode):
    """Fails on any operation for which the host would have to wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"), f"{name} reads"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_host_read() -> NoHostRead:
    return NoHostRead()
