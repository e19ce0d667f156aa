"""Measure ``forgetless repair`` on the pretrained transformers of ``examples/``, in Hugging Face folders.

python benchmarks/finished.py [--seeds 3] [--out FILE]

A ViT and a BERT, pretrained as in the examples, learn eight classes (the folder ``before``), then the other two (the
folder ``after``), and forget the eight. The command repairs them with 20 training examples of each class.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from provenance import provenance, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import transformers_text
import transformers_vit

OLD, PER_CLASS, EPOCHS, BATCH, RATE = 8, 20, 5, 16, 0.0005
Columns = dict[str, Tensor]


def vit(seed: int) -> tuple[Any, Columns, Columns]:
    """Return a pretrained ViT, and the columns for training and for the test."""
    model = transformers_vit.vit(labels=10)
    model.load_state_dict(transformers_vit.pretrained(seed, epochs=30), strict=False)
    parts = transformers_vit.digits()
    train, test = ({"pixel_values": parts[name][0], "labels": parts[name][1]} for name in ("stream", "test"))
    return model, train, test


def bert(seed: int) -> tuple[Any, Columns, Columns]:
    """Return a pretrained BERT, and the columns for training and for the test."""
    model = transformers_text.bert(labels=10)
    model.load_state_dict(transformers_text.pretrained(seed, epochs=8), strict=False)
    parts = transformers_text.documents()
    train, test = ({**parts[name][0], "labels": parts[name][1]} for name in ("stream", "test"))
    return model, train, test


MODELS = {"ViT, digits": vit, "BERT, docstrings": bert}


def where(columns: Mapping[str, Tensor], rows: Tensor) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def fit(model: Any, columns: Columns) -> None:
    """Finetune all parameters with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(columns["labels"])).split(BATCH):
            batch = where(columns, rows)
            labels = batch.pop("labels")
            loss = F.cross_entropy(model(**batch).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracies(model: Any, test: Columns) -> dict[str, float]:
    """Return the test accuracy on the old and on the new classes, in percent."""
    inputs = {name: column for name, column in test.items() if name != "labels"}
    correct = 100 * (model.eval()(**inputs).logits.argmax(1) == test["labels"]).float()
    old = test["labels"] < OLD
    return {"old": round(float(correct[old].mean()), 1), "new": round(float(correct[~old].mean()), 1)}


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train a model twice, repair it by the command, and return what that did."""
    torch.manual_seed(seed)
    model, train, test = MODELS[name](seed)
    labels = train["labels"]
    result: dict[str, Any] = {}
    for stage, rows in (("before", labels < OLD), ("after", labels >= OLD)):
        fit(model, where(train, rows))
        model.save_pretrained(folder / stage)
        result[stage] = accuracies(model, test)
    few = torch.cat([(labels == label).nonzero().flatten()[:PER_CLASS] for label in range(10)])
    save_file({key: column.contiguous() for key, column in where(train, few).items()}, folder / "examples.safetensors")
    words = [f"--{option}={folder / option}" for option in ("before", "after")]
    words += [f"--examples={folder / 'examples.safetensors'}", f"--out={folder / 'repaired'}", "--quiet"]
    subprocess.run([sys.executable, "-m", "forgetless", "repair", *words], check=True, stdout=sys.stderr)
    report = json.loads((folder / "repaired" / "report.json").read_text())
    result["repaired"] = accuracies(type(model).from_pretrained(folder / "repaired"), test)
    lost = result["before"]["old"] - result["after"]["old"]
    changed = sum(group["share"] for group in report["groups"] if group["repaired"])
    return {
        **result,
        "recovered_percent": round(100 * (result["repaired"]["old"] - result["after"]["old"]) / lost, 1),
        "changed_percent": round(100 * changed, 1),
        "groups": [group["name"] for group in report["groups"] if group["repaired"]],
        "optimizer": report["optimizer"],
        "lr": report["lr"],
        "seconds": round(report["seconds"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in MODELS:
        runs = []
        for seed in range(arguments.seeds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(run(name, seed, Path(folder)))
            print(name, runs[-1], file=sys.stderr, flush=True)
        numbers = ("recovered_percent", "changed_percent", "seconds")
        rows[name] = {"runs": runs, **{number: round(mean(row[number] for row in runs), 1) for number in numbers}}
    publish(
        {**provenance(), "transformers": version("transformers"), "examples": 10 * PER_CLASS, "rows": rows},
        arguments.out,
    )


if __name__ == "__main__":
    main()
