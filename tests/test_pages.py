"""Every code block of docs/ runs: the Python of a page from top to bottom, its commands one by one."""

import importlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from helpers import command, ended

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = {path.name for path in (DOCS.parent / "benchmarks" / "templates").glob("*.md")}  # by benchmarks/tables.py
BLOCK = re.compile(r'^```(python|bash|toml)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in GENERATED and BLOCK.search(path.read_text()))
NEEDS = {
    "avalanche.md": "pytorchcv",
    "huggingface.md": "transformers",
    "lightning.md": "lightning",
    "loggers.md": "tensorboard",
}


def start(words, folder):
    """Run a command with a page's folder and the stub programs importable."""
    path = f"{folder}{os.pathsep}{Path(__file__).parent / 'programs'}"
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return ended(words, cwd=folder, env=environment)


def call(words, folder):
    """Run a command line of a page with this environment's Python."""
    if words[0] == "forgetless":
        return command(*words[1:], cwd=folder)
    assert words[0] == "torchrun", f"a page calls {words[0]}"
    return start([sys.executable, "-m", "torch.distributed.run", *words[1:]], folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, tmp_path):
    pytest.importorskip(NEEDS.get(page.name, "torch"), reason="the library of the page is not installed")
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
            words, _, remark = line.partition("#")
            words = shlex.split(words)
            if words[0] == "pip":
                continue
            if "needs" in remark or words[1] == "demo":  # cannot run here, so check that its options exist
                options = [word for word in words if word.startswith("--")]
                names = [word for word in words[:3] if word in ("sweep", "search", "reproduce", "data", "get", "demo")]
                help_text = call([words[0], *names, "--help"], tmp_path).stdout
                assert all(option in help_text for option in options), line
            else:
                done = call(words, tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_transformers_snippet_runs():
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
