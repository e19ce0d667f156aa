from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two workers of two threads each are ten times slower
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # hosted CI is taken for a terminal, so help would have colours
os.environ["COLUMNS"] = "160"  # of what commands print: rich looks once, when it is imported

import pytest
import torch

if platform.machine() in ("aarch64", "arm64"):
    torch.backends.mkldnn.enabled = False  # on Arm, oneDNN takes longer to start a small product than to compute it
if torch.backends.cpu.get_cpu_capability() == "AVX2":
    # Convolutions of fewer than eight channels crash there: https://github.com/uxlfoundation/oneDNN/issues/6035
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX"

# The files that take longest, which start first: two processes share the files, and neither should wait for the other.
LONGEST = ("test_pages.py", "test_checkpoint.py", "test_workers.py", "test_transformers.py", "test_sharded.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    gc.freeze()  # imports stay, and searching them for garbage takes 7 % of the time of tests


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])


def global_switches() -> dict[str, object]:
    """Return torch's process-wide switches, which a test must leave as they were."""
    return {
        "oneDNN": torch.backends.mkldnn.enabled,
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    }


@pytest.fixture(autouse=True)
def unchanged_switches() -> Iterator[None]:
    """Fail a test that leaves one of torch's global switches changed."""
    before = global_switches()
    yield
    assert global_switches() == before, "the test changed a global switch of torch"


@pytest.fixture(scope="session")
def records():
    """Of three ways of training on the digits, two seeds each."""
    from forgetless.experiments.run import run
    from forgetless.experiments.settings import resolve

    found = []
    for method, way in (("sgd", {}), ("er", {"repair": "fpf", "steps": 5}), ("joint", {})):
        given = {"epochs": 2, "batch": 50, "replay": 50, **way}
        found += [run(resolve("seq-digits", method, {**given, "seed": seed})[0]) for seed in (0, 1)]
    return found
