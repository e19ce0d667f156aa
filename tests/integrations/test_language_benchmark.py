"""The benchmark of ways to keep what a language model has learned runs on a CPU with a tiny one."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

from language import llama


@pytest.fixture
def language(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.delitem(sys.modules, "language")  # that of the tests
    import language

    yield language
    del sys.modules["language"]


@pytest.fixture
def study(language, tmp_path):
    """Return a study of 4 steps per domain; in each domain the tokens count up by another number."""
    arrays = {}
    for stride, domain in enumerate((*language.DOMAINS, language.UNTOUCHED), start=1):
        for split, count in (("train", 80), ("validation", 4), ("test", 4)):
            starts = np.random.default_rng(stride).integers(50, size=(count, 1))
            arrays[f"{domain}/{split}"] = (3 + (starts + stride * np.arange(12)) % 50).astype(np.uint16)
    np.savez(tmp_path / "domains.npz", **arrays)
    text = language.Text(tmp_path / "domains.npz", "cpu")
    return language.Study(text, llama(), tmp_path, tmp_path / "record.json", steps=4)


def test_rows_are_measured_once_with_their_cost(language, study):
    for _ in range(2):
        for name in ("plain", "replay 12.5 %", "LoRA", "attention", "interpolation", "FPF norms"):
            study.measure(name, 1)
    runs = {run["row"]: run for run in study.content["runs"]}
    assert len(study.content["runs"]) == len(runs) == 6
    tokens = 4 * 4 * 16 * 12  # domains, steps, sequences and their tokens
    assert runs["plain"]["tokens"] == runs["LoRA"]["tokens"] == runs["interpolation"]["tokens"] == tokens
    assert runs["replay 12.5 %"]["tokens"] == tokens + 3 * 4 * 2 * 12  # two old sequences per step from domain 2 on
    assert runs["FPF norms"]["tokens"] > tokens
    assert runs["plain"]["share"] == 1
    attention, perceptron, norms = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 64, 5 * 32
    total = 2 * (attention + perceptron) + norms + 2 * 64 * 32
    undone = "so the weights are unchanged" in runs["FPF norms"]["report"]  # whether 4 steps helped depends on the CPU
    assert runs["FPF norms"]["share"] == (0 if undone else pytest.approx(norms / total))
    assert runs["attention"]["share"] == pytest.approx(2 * attention / total)
    assert set(runs["plain"]["losses"]) == {*language.DOMAINS, language.UNTOUCHED}
    searched = study.content["searches"]["plain"]
    assert float(min(searched, key=searched.get)) == runs["plain"]["rate"]


def test_a_step_is_one_of_adamw_with_clipped_gradients(language):
    import torch

    model, twin = llama(), llama()
    batch = torch.randint(3, 50, (4, 8), generator=torch.Generator().manual_seed(0))
    ours, theirs = language.Descent(model), torch.optim.AdamW(twin.parameters())
    ours.step(batch, 0.1)
    ours.reset()
    model.load_state_dict(twin.state_dict())
    for rate in (0.01, 0.002, 0.005):
        ours.step(batch, rate)
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        twin(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), language.CLIP)
        theirs.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_page_states_the_rows_and_settings_of_the_benchmark(language):
    import domains
    from pages import language as page

    assert tuple(page.NAMES) == language.ROWS
    assert (page.DOMAINS, page.UNTOUCHED) == (language.DOMAINS, language.UNTOUCHED)
    assert (page.STEPS, page.BATCH, page.CAPACITY) == (language.STEPS, language.BATCH, language.CAPACITY)
    assert domains.LENGTH == page.LENGTH
    assert (language.TRAININGS["LoRA"].rank, language.TRAININGS["k-FPF"].schedule) == (page.RANK, page.SCHEDULE)
