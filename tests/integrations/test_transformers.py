"""The examples with pretrained transformers, in their quick versions: what is repaired is what was forgotten."""

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request, monkeypatch):
    pytest.importorskip("peft", reason="peft is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(request.param)


# Its quick version hardly pretrains, and on the text of other versions of Python may have nothing to repair.
TEXT = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="its text is that of Python 3.11's standard library")


# Fewer or shorter repairs than the example's, which take much longer.
VIT = {"every": 150, "steps": 100, "window": 15}
BERT = {"every": 100, "steps": 100}


@pytest.mark.parametrize(
    ("example", "settings", "gain"),
    [("transformers_vit", VIT, 40.0), pytest.param("transformers_text", BERT, 12.0, marks=TEXT)],
    indirect=["example"],
)
def test_k_fpf_repairs_a_pretrained_transformer(example, settings, gain):
    plain = example.run("plain", quick=True)
    repaired = example.run("k-FPF", quick=True, **settings)
    assert plain.trained == 1.0
    assert plain.before == plain.after
    assert plain.after < 30
    assert repaired.after > plain.after + gain
    profile = repaired.fpf.profile()
    assert "head" in profile.chosen
    assert {"stem", "block1", "block2", "norm.affine", "head"} <= {group.name for group in profile.groups}
