"""Every code block of the documentation runs: a page's Python from top to bottom, its commands one by one."""

import importlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from helpers import command, ended

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = {
    "results.md",
    "studies.md",
    "findings.md",
    "speed.md",
    "reliability.md",
    "transformers.md",
}  # by benchmarks/tables.py
BLOCK = re.compile(r'^```(python|bash|toml)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in GENERATED and BLOCK.search(path.read_text()))
NEEDS = {"avalanche.md": "pytorchcv", "lightning.md": "lightning", "huggingface.md": "transformers"}


def start(command, folder):
    path = f"{folder}{os.pathsep}{Path(__file__).parent / 'programs'}"
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return ended(command, cwd=folder, env=environment)


def call(words, folder):
    """A command line as this environment's Python runs it."""
    if words[0] == "forgetless":
        return command(*words[1:], cwd=folder)
    assert words[0] == "torchrun", f"a page calls {words[0]}"
    return start([sys.executable, "-m", "torch.distributed.run", *words[1:]], folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    pytest.importorskip(NEEDS.get(page.name, "torch"), reason="its library is not installed")
    text = page.read_text()
    python = []
    for kind, title, code in BLOCK.findall(text):
        if title:
            (tmp_path / title).write_text(code)
        elif kind == "python":
            python.append(code)
    if page.name == "avalanche.md":
        python.insert(0, "import torchvision_operators")
    if python:
        (tmp_path / "page.py").write_text("\n".join(python))
        done = start([sys.executable, "-W", "ignore", "page.py"], tmp_path)
        assert done.returncode == 0, done.stderr
    for kind, _, code in BLOCK.findall(text):
        for line in code.splitlines() if kind == "bash" else ():
            command, _, remark = line.partition("#")
            words = shlex.split(command)
            if words[0] == "pip":
                continue
            if "needs" in remark or words[1] == "demo":  # what it needs is not here: are the options right?
                options = [word for word in words if word.startswith("--")]
                names = [word for word in words[:3] if word in ("sweep", "search", "reproduce", "data", "get", "demo")]
                helped = call([words[0], *names, "--help"], tmp_path).stdout
                assert all(option in helped for option in options), line
            else:
                done = call(words, tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_the_lines_of_the_page_on_transformers_run():
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "transformers.md").read_text(), re.S)
    torch = pytest.importorskip("torch")
    forgetless = importlib.import_module("forgetless")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, num_labels=3, **sizes))
    batch, labels = {"input_ids": torch.arange(8).view(2, 4)}, torch.tensor([0, 2])
    names = {"forgetless": forgetless, "model": model, "batch": batch, "labels": labels}
    with pytest.warns(UserWarning, match="nothing was finetuned in 1 steps"):
        exec(code, {**names, "logits": model(**batch).logits})
