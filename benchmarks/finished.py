"""Measure ``forgetless repair`` on the pretrained transformers of ``examples/``, in Hugging Face folders.

python benchmarks/finished.py [--seeds 3] [--out FILE]

A ViT and a BERT, pretrained as in the examples, learn eight classes (the folder ``before``), then the other two (the
folder ``after``), and forget the eight. The command repairs them with 20 training examples of each class. Two
references start from the same pretrained weights: ``joint`` learns all data at once, ``examples_only`` learns nothing
but the examples that the repair has. ``seconds`` is the processor time of the whole command on one core.
"""

from __future__ import annotations

import copy
import json
import os
import resource
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

from provenance import parse_arguments, provenance, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import transformers_text
import transformers_vit

OLD, PER_CLASS, EPOCHS, BATCH, RATE = 8, 20, 5, 16, 0.0005
EPOCHS_ON_EXAMPLES = 25  # 325 steps; a repair takes at most 300 besides its trials
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


def fit(model: Any, columns: Columns, epochs: int = EPOCHS) -> Any:
    """Finetune all parameters with AdamW, and return the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(columns["labels"])).split(BATCH):
            batch = where(columns, rows)
            labels = batch.pop("labels")
            loss = F.cross_entropy(model(**batch).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracies(model: Any, test: Columns) -> dict[str, float]:
    """Return the test accuracy on the old, the new and all classes, in percent."""
    inputs = {name: column for name, column in test.items() if name != "labels"}
    correct = 100 * (model.eval()(**inputs).logits.argmax(1) == test["labels"]).float()
    old = test["labels"] < OLD
    parts = {"old": correct[old], "new": correct[~old], "all": correct}
    return {name: round(float(part.mean()), 1) for name, part in parts.items()}


def repair(folder: Path) -> tuple[dict[str, Any], float]:
    """Run the command on the models and examples of a folder; return its report and its processor time in seconds."""
    words = [f"--{option}={folder / option}" for option in ("before", "after")]
    words += [f"--examples={folder / 'examples.safetensors'}", f"--out={folder / 'repaired'}", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "forgetless", "repair", *words], check=True, stdout=sys.stderr, env=environment
    )
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    report: dict[str, Any] = json.loads((folder / "repaired" / "report.json").read_text())
    return report, end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train a model twice, repair it by the command, and return what that did."""
    torch.manual_seed(seed)
    model, train, test = MODELS[name](seed)
    pretrained = copy.deepcopy(model)
    labels = train["labels"]
    few = torch.cat([(labels == label).nonzero().flatten()[:PER_CLASS] for label in range(10)])
    result: dict[str, Any] = {}
    for stage, rows in (("before", labels < OLD), ("after", labels >= OLD)):
        fit(model, where(train, rows)).save_pretrained(folder / stage)
        result[stage] = accuracies(model, test)
    save_file({key: column.contiguous() for key, column in where(train, few).items()}, folder / "examples.safetensors")
    report, seconds = repair(folder)
    result["repaired"] = accuracies(type(model).from_pretrained(folder / "repaired"), test)
    result["joint"] = accuracies(fit(copy.deepcopy(pretrained), train), test)
    result["examples_only"] = accuracies(fit(pretrained, where(train, few), EPOCHS_ON_EXAMPLES), test)
    lost = result["before"]["old"] - result["after"]["old"]
    changed = sum(group["share"] for group in report["groups"] if group["repaired"])
    return {
        **result,
        "recovered_percent": round(100 * (result["repaired"]["old"] - result["after"]["old"]) / lost, 1),
        "changed_percent": round(100 * changed, 1),
        "groups": [group["name"] for group in report["groups"] if group["repaired"]],
        "optimizer": report["optimizer"],
        "lr": report["lr"],
        "steps": report["steps"],
        "seconds": round(seconds, 1),
    }


def means(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the seeds."""
    stages = ("before", "after", "repaired", "joint", "examples_only")
    numbers = ("recovered_percent", "changed_percent", "seconds")
    return {
        **{
            stage: {part: round(mean(run[stage][part] for run in runs), 1) for part in runs[0][stage]}
            for stage in stages
        },
        **{number: round(mean(run[number] for run in runs), 1) for number in numbers},
    }


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=3)
    torch.set_num_threads(1)
    rows = {}
    for name in MODELS:
        runs = []
        for seed in range(arguments.seeds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(run(name, seed, Path(folder)))
            print(name, runs[-1], file=sys.stderr, flush=True)
        rows[name] = {"mean": means(runs), "runs": runs}
    publish(
        {**provenance(), "transformers": version("transformers"), "examples": 10 * PER_CLASS, "rows": rows},
        arguments.out,
    )


if __name__ == "__main__":
    main()
