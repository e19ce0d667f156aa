"""Every code block of README.md and docs/, and every cell of notebooks/, runs and prints what is shown."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from helpers import command, program, torchrun

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = {path.name for path in (DOCS.parent / "benchmarks" / "templates").glob("*.md")}  # by benchmarks/tables.py
BLOCK = re.compile(r'^```(python|bash|toml|text)(?: title="([^"]+)")?(?: hl_lines="[\d ]+")?\n(.*?)^```$', re.M | re.S)
WRITTEN = [DOCS.parent / "README.md", *sorted(path for path in DOCS.glob("*.md") if path.name not in GENERATED)]
PAGES = [path for path in WRITTEN if BLOCK.search(path.read_text())]
NOTEBOOKS = sorted((DOCS.parent / "notebooks").glob("*.ipynb"))
NEEDS = {
    "avalanche.md": "pytorchcv",
    "huggingface.md": "transformers",
    "language-models.md": "trl",
    "lightning.md": "lightning",
    "repair-a-language-model.ipynb": "transformers",
    "runs.md": "tensorboard",
}
DIGITS = """
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import forgetless

torch.manual_seed(0)
x, y = torch.tensor(load_digits().data, dtype=torch.float32) / 16, torch.tensor(load_digits().target)
tasks = [(y // 2 == task).nonzero().flatten() for task in range(5)]
stream = [(x[part], y[part]) for rows in tasks for _ in range(3) for part in rows[torch.randperm(len(rows))].split(10)]
model = forgetless.networks.mlp(classes=10, inputs=64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BEFORE = {  # what a page expects to be there
    "README.md": "import torch\n\ntorch.manual_seed(0)\n",  # other initial weights may prefer another optimizer
    "avalanche.md": "import torchvision_operators\n",
    "index.md": DIGITS,
}
TOLERANCE = 15  # of a shown number, which is often an accuracy in percent: other CPUs round differently
SHARE = 0.3  # of a larger number, such as the steps of a repair


def call(words, folder):
    """Run a command line of a page with this environment's Python."""
    calls = {"forgetless": command, "torchrun": torchrun}
    assert words[0] in calls, f"a page calls {words[0]}"
    return calls[words[0]](*words[1:], cwd=folder)


def assert_alike(printed, shown):
    """Compare word by word; a number may differ by ``TOLERANCE``, or by ``SHARE`` of it."""
    words, expected = (re.findall(r"[-\d.,]*\d|[^\s\d]+", text) for text in (printed, shown))
    assert len(words) == len(expected), f"printed:\n{printed}\nshown:\n{shown}"
    for word, other in zip(words, expected, strict=True):
        if word[-1].isdigit() and other[-1].isdigit():
            number, wanted = (float(text.replace(",", "")) for text in (word, other))
            assert abs(number - wanted) <= max(TOLERANCE, SHARE * wanted), (word, other)
        else:
            assert word == other, f"printed:\n{printed}\nshown:\n{shown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run_and_print_what_the_page_shows(page, tmp_path):
    pytest.importorskip(NEEDS.get(page.name, "torch"), reason="the library of the page is not installed")
    blocks = BLOCK.findall(page.read_text())
    for _, title, code in blocks:
        if title:
            (tmp_path / title).write_text(code)
    python = [code for kind, title, code in blocks if kind == "python" and not title]
    printed = ""
    if python:
        (tmp_path / "page.py").write_text("\n".join([BEFORE.get(page.name, ""), *python]))
        done = program(tmp_path / "page.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    for line in [line for kind, _, code in blocks if kind == "bash" for line in code.splitlines()]:
        words, _, remark = line.partition("#")
        words = shlex.split(words)
        if words[0] == "pip":
            continue
        if "needs" in remark or words[1] == "demo":  # cannot run here, so check that its options exist
            options = [word for word in words if word.startswith("--")]
            names = [
                word
                for word in words[:3]
                if word in ("run", "sweep", "search", "reproduce", "data", "get", "demo", "repair")
            ]
            help_text = call([words[0], *names, "--help"], tmp_path).stdout
            assert all(option in help_text for option in options), line
        else:
            if words[1] in ("search", "sweep"):
                words += ["--workers", "1"]  # starting a second process takes longer than its runs
            done = call(words, tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout if words[0] == "torchrun" else ""  # tables of the command line are not shown
    assert_alike(printed, "".join(code for kind, _, code in blocks if kind == "text"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_runs_and_prints_what_it_shows(notebook, tmp_path):
    pytest.importorskip(NEEDS.get(notebook.name, "torch"), reason="the library of the notebook is not installed")
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    code, shown = [], ""
    for cell in cells:
        source = "".join(cell["source"])
        if source.startswith("!"):  # a command, whose output is not compared
            words = [sys.executable, "-m", *shlex.split(source[1:])]
            code.append(f"import subprocess\nsubprocess.run({words}, check=True, capture_output=True)")
            continue
        code.append(source)
        shown += "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
    (tmp_path / "notebook.py").write_text("\n".join(code))
    done = program(tmp_path / "notebook.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_alike(done.stdout, shown)


def test_site_offers_every_notebook():
    assert [path.resolve() for path in sorted((DOCS / "notebooks").glob("*.ipynb"))] == NOTEBOOKS


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
