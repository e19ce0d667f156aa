"""The benchmark of a large language model runs on a CPU with a tiny one."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


def test_a_tiny_model_is_measured(tmp_path):
    tiny = ["--hidden", "16", "--layers", "1", "--length", "8", "--blocks", "2", "--steps", "2", "--window", "2"]
    command = [sys.executable, ROOT / "benchmarks" / "large.py", *tiny, "--out", tmp_path / "record.json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    attention, perceptron, norms = 4 * 16 * 16, 3 * 16 * 64, 2 * 16
    assert record["parameters"] == attention + perceptron + norms + 16 + 2 * 256 * 16
    for mode in ("budget", "schedule"):
        plain, observed = median(record[mode]["plain_blocks_ms"]), median(record[mode]["observed_blocks_ms"])
        assert record[mode]["overhead_percent"] == pytest.approx(100 * (observed / plain - 1), abs=0.5)
    assert (record["repair"]["steps"], record["repair"]["held_out"]) == (60, 4)  # of 4 steps with 8 sequences
    assert record["command"] == f"python benchmarks/large.py {' '.join(tiny)}"
