"""A Llama of transformers that two processes share ends at the weights of one process."""

import json
from pathlib import Path

import pytest

from helpers import in_processes

PROGRAM = Path(__file__).parents[1] / "programs" / "llama_together.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return what the processes wrote for a way to share the network."""
    for extra in ("accelerate", "transformers"):
        pytest.importorskip(extra, reason=f"needs {extra}")
    folder = tmp_path_factory.mktemp("llama")
    in_processes(1, PROGRAM, folder)
    return lambda way: [json.loads(file.read_text()) for file in sorted(folder.glob(f"{way}-*.json"))]


@pytest.mark.parametrize(
    ("way", "model"), [("sharded", "FSDPLlamaForCausalLM"), ("accelerate", "DistributedDataParallel")]
)
def test_two_processes_equal_one_with_the_same_data(together, way, model):
    (one,), (first, second) = together("alone"), together(way)
    assert first == second
    assert first["model"] == model
    assert first["held"] == one["held"] / 2
    assert first["chosen"] == one["chosen"]
    assert first["finetunings"] == one["finetunings"] == 2
    assert first["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert first["weights"] == pytest.approx(one["weights"], abs=1e-4)
