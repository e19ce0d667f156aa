"""The benchmark of fused lanes checks all variants on a CPU with a tiny network; Triton's kernels need a GPU."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = {  # how often a step of ResNet-18 computes each, and in how many ways
    "convolutions": (20, 6), "batch norm": (20, 2), "augmentation": (1, 2), "cross-entropy": (1, 2), "update": (1, 3),
}  # fmt: skip


def run(out):
    tiny = ["--device", "cpu", "--width", "4", "--size", "8", "--lanes", "2", "--batches", "3", "--out", out]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fused.py", *tiny], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def test_all_variants_match_and_totals_are_sums(tmp_path):
    record, printed = run(tmp_path / "record.json")
    rows = record["rows"]
    assert all(row["deviation"] <= record["tolerance"] == 1e-4 for row in rows)
    assert not any("errors" in row for row in rows)
    for entry in record["summary"]:
        own = [row for row in rows if row["part"] == entry["part"]]
        variants = {row["variant"] for row in own}
        totals, times = entry["milliseconds"], {}
        first = [row for row in own if row["variant"] == "streams" and row["direction"].startswith("forward")]
        assert (sum(row["occurrences"] for row in first), len(variants)) == PARTS[entry["part"]]
        for row in own:
            times[row["variant"], row["problem"], row["direction"]] = row["occurrences"] * row["microseconds"] / 1000
        for variant in variants:
            assert totals[variant] == pytest.approx(sum(time for key, time in times.items() if key[0] == variant))
            assert f"{entry['part']:16}{variant:36}{totals[variant]:10.3f}" in printed
        channels = {"grouped, channels last", "grouped, contiguous", "all channels"}
        best = {}
        for (variant, *case), time in times.items():
            if variant not in channels:
                best[tuple(case)] = min(time, best.get(tuple(case), time))
        assert totals["best mix, lanes first"] == pytest.approx(sum(best.values()))
        fastest = min(time for variant, time in totals.items() if variant != "streams")
        assert entry["ratio"] == pytest.approx(totals["streams"] / fastest)
    again, printed = run(tmp_path / "record.json")
    assert again["rows"] == rows  # nothing is measured twice


def test_wrong_variants_are_recorded_and_not_timed(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import fused
    from fused_parts import CrossEntropy

    problem = CrossEntropy(2, 3, torch.device("cpu"), 1)
    inputs = problem.inputs(0)
    right = problem.reference(inputs, "", "")

    def variant(*results):
        return lambda *_: {"": [lambda: results]}

    def unsupported(*_):
        raise RuntimeError("no kernel\nfound")

    variants = {
        "right": variant(*right),
        "one lane": variant(right[0], right[1] * torch.tensor([1, 1.01])[:, None, None]),
        "NaN": variant(right[0] * torch.nan, right[1]),
        "shape": variant(right[0][:1], right[1]),
        "unsupported": unsupported,
    }
    with patch.object(CrossEntropy, "variants", lambda _: variants):
        rows = {name: fused.measure_variant(problem, [inputs], "", name) for name in variants}
    assert rows["right"]["deviation"] == 0
    assert rows["right"]["microseconds"] > 0
    assert rows["one lane"] == {"errors": {"": "wrong: deviates by 0.01"}}
    assert rows["NaN"] == {"errors": {"": "wrong: deviates by nan"}}
    assert rows["shape"] == {"errors": {"": "ValueError: a result has shape (1,); it must be (2,)"}}
    assert rows["unsupported"] == {"errors": {"": "RuntimeError: no kernel"}}


def test_parts_with_missing_cases_have_no_totals(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import fused

    arguments = argparse.Namespace(device="cpu", width=4, size=8, lanes="2", batches="3")
    rows = [key for key, _ in fused.cases(arguments)]
    assert fused.finished(rows, arguments) == rows
    kept = [row for row in rows if row["problem"] != "3×3 8→8, 4→4" or row["variant"] != "vmap"]
    assert len(kept) == len(rows) - 3
    assert {row["part"] for row in fused.finished(kept, arguments)} == set(PARTS) - {"convolutions"}
    assert fused.finished([], arguments) == []


def test_an_unmeasured_case_leaves_no_total(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import fused

    case = {"lanes": 8, "batch": 32, "part": "convolutions", "problem": "a", "occurrences": 3}
    rows = [
        {**case, "direction": "forward", "variant": "streams", "microseconds": 1000.0},
        {**case, "direction": "forward", "variant": "triton", "microseconds": 500.0},
        {**case, "direction": "input", "variant": "streams", "microseconds": 2000.0},
        {**case, "direction": "input", "variant": "triton", "errors": {"": "wrong: deviates by 1"}},
    ]
    assert fused.summarise(rows) == [
        {
            "lanes": 8, "batch": 32, "part": "convolutions",
            "milliseconds": {"streams": 9.0, "best mix, lanes first": 7.5},
            "fastest": "best mix, lanes first", "ratio": pytest.approx(1.2),
        }
    ]  # fmt: skip
