"""Finetuning in bfloat16.

On an Arm CPU without instructions for bfloat16 the first product fails inside torch, which then switches oneDNN off for
the whole process. These claims are checked by a program in its own process, so that later tests keep it.
"""

import sys
from pathlib import Path

import pytest
import torch

import forgetless.fpf
from forgetless import FPF, networks
from helpers import ended

PROGRAM = Path(__file__).parents[1] / "programs" / "bfloat16.py"


@pytest.fixture(scope="module")
def claims():
    """What the program found to hold."""
    before = torch._C._get_mkldnn_enabled()
    done = ended([sys.executable, str(PROGRAM)])
    assert done.returncode == 0, done.stderr
    assert torch._C._get_mkldnn_enabled() == before
    return done.stdout.split()


@pytest.mark.parametrize("claim", ["autocast", "users_autocast", "parameters"])
def test_finetuning_in_bfloat16_learns(claim, claims):
    assert claim in claims


@pytest.mark.parametrize("has_instructions", [True, False])
def test_autocast_warns_without_bfloat16_instructions(has_instructions, monkeypatch, recwarn):
    monkeypatch.setattr(forgetless.fpf, "has_bf16", lambda: has_instructions)
    FPF(networks.mlp(4), autocast=torch.bfloat16)
    FPF(networks.mlp(4))
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (not has_instructions)
    assert all("autocast is torch.bfloat16, but this CPU has no instructions for it: " in text for text in messages)
