"""Pretrain a small BERT, then finetune it to recognise which module a passage of documentation is from, two at a time.

python examples/transformers_text.py [--seed 0] [--adapters] [--quick]

The text comes with every installation of Python: the docstrings of its standard library, in passages of up to 120
characters. Pretraining builds a byte-level vocabulary and classifies 41 modules that are in no task. Then comes a
stream of five tasks of two modules: plain finetuning, the same with FPF at the end, and with k-FPF. With --adapters the
pretrained weights stay fixed; LoRA adapters (peft) and the classifier are trained and repaired.
"""

from __future__ import annotations

import argparse
import ast
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import forgetless

TASKS = (
    ("email", "_pydecimal"),
    ("asyncio", "difflib"),
    ("logging", "doctest"),
    ("http", "typing"),
    ("unittest", "inspect"),
)
OTHERS = (
    "importlib", "xml", "urllib", "ipaddress", "statistics", "threading", "multiprocessing", "tarfile", "configparser",
    "codecs", "smtplib", "json", "shutil", "subprocess", "optparse", "imaplib", "_pyio", "argparse", "bdb",
    "collections", "concurrent", "contextlib", "ctypes", "enum", "ftplib", "functools", "os", "pathlib", "pdb",
    "pickle", "pickletools", "pydoc", "random", "socketserver", "ssl", "tempfile", "textwrap", "traceback", "wsgiref",
    "xmlrpc", "zipfile",
)  # fmt: skip
SHORTEST, LONGEST, PASSAGES = 80, 120, 250  # characters per passage, and passages per module
WORDS, TOKENS = 1000, 40
EPOCHS, BATCH, CAPACITY = 5, 10, 500
RATES = {"full": 0.02, "LoRA": 0.1}  # SGD's learning rate in the stream
WAYS: dict[str, dict[str, dict[str, Any] | None]] = {  # the settings of FPF, or None for plain finetuning
    "full": {"plain": None, "FPF": {"lr": 0.2}, "k-FPF": {"lr": 0.05, "every": 50}},
    "LoRA": {"plain": None, "FPF": {"lr": 0.2}, "k-FPF": {"lr": 0.1, "every": 50}},
}


def passages(module: str) -> list[str]:
    """Return a module's docstrings in passages that are long enough, without duplicates, in a fixed random order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for file in sorted((library / module).rglob("*.py")) or [library / f"{module}.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found |= dict.fromkeys(textwrap.wrap(ast.get_docstring(node) or "", LONGEST))
    long = [passage for passage in found if len(passage) >= SHORTEST]
    random.Random(0).shuffle(long)
    return long


@cache
def corpus() -> dict[str, list[str]]:
    """Return at most 250 passages per module. A passage that two modules share belongs to the first."""
    seen: set[str] = set()
    found = {}
    for module in [name for task in TASKS for name in task] + list(OTHERS):
        found[module] = [passage for passage in passages(module) if passage not in seen][:PASSAGES]
        seen |= set(found[module])
    return found


@cache
def tokenizer() -> ByteLevelBPETokenizer:
    """Return a byte-level tokenizer, trained on the text of the pretraining."""
    tokens = ByteLevelBPETokenizer(lowercase=True)
    text = [passage for module in OTHERS for passage in corpus()[module]]
    tokens.train_from_iterator(text, WORDS, special_tokens=["[PAD]", "[CLS]"], show_progress=False)
    tokens.enable_truncation(TOKENS - 1)
    return tokens


def encode(text: list[str]) -> dict[str, Tensor]:
    tokens = torch.zeros(len(text), TOKENS, dtype=torch.int64)
    for row, encoding in zip(tokens, tokenizer().encode_batch(text), strict=True):
        row[: len(encoding.ids) + 1] = torch.tensor([1, *encoding.ids])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


@cache
def documents() -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    """Return the stream's passages with their labels. Every fifth passage of a module is for the test.

    An eighth of the others is the validation set on which the settings were chosen; final runs train on it too.
    """
    modules = [name for task in TASKS for name in task]
    text = [passage for module in modules for passage in corpus()[module]]
    y = torch.tensor([label for label, module in enumerate(modules) for _ in corpus()[module]])
    row = torch.cat([torch.arange(len(corpus()[module])) for module in modules])
    parts = {"test": row % 5 == 0, "validation": row % 10 == 1, "stream": row % 5 != 0}
    parts["without validation"] = parts["stream"] & ~parts["validation"]
    x = encode(text)
    return {name: (take(x, rows), y[rows]) for name, rows in parts.items()}


def take(x: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: column[rows] for name, column in x.items()}


def bert(labels: int) -> nn.Module:
    model: nn.Module = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, max_position_embeddings=TOKENS, hidden_size=64, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            pad_token_id=0, num_labels=labels,
        )
    )  # fmt: skip
    return model


@cache
def pretrained(seed: int, epochs: int) -> dict[str, Tensor]:
    """Return the weights of a network that has learned to classify 41 other modules, without its classifier."""
    torch.manual_seed(seed)
    model = bert(labels=len(OTHERS)).train()
    x = encode([passage for module in OTHERS for passage in corpus()[module]])
    y = torch.tensor([label for label, module in enumerate(OTHERS) for _ in corpus()[module]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(32):
            loss = F.cross_entropy(model(**take(x, rows)).logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value for name, value in model.state_dict().items() if not name.startswith("classifier")}


def stream(y: Tensor, seed: int, epochs: int) -> Iterator[Tensor]:
    """Yield the rows of batches from the first two modules, then from the next two. Nothing marks where a task ends."""
    generator = torch.Generator().manual_seed(seed)
    for task in range(len(TASKS)):
        examples = (y // 2 == task).nonzero().flatten()
        for _ in range(epochs):
            yield from examples[torch.randperm(len(examples), generator=generator)].split(BATCH)


@torch.no_grad()
def accuracy(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> float:
    model.eval()
    correct = (model(**x).logits.argmax(1) == y).float().mean()
    model.train()
    return 100 * float(correct)


@dataclass(frozen=True)
class Outcome:
    """Accuracies over all classes in percent, before and after the last repair, and the share of trained parameters."""

    before: float
    after: float
    trained: float
    fpf: forgetless.FPF | None

    @property
    def repaired(self) -> float:
        """Return the share of repaired parameters."""
        return 0.0 if self.fpf is None else self.fpf.profile().share


def run(
    way: str,
    seed: int = 0,
    adapters: bool = False,
    quick: bool = False,
    validation: bool = False,
    rate: float | None = None,
    **settings: Any,
) -> Outcome:
    """Train on the stream. ``validation``, ``rate`` and ``settings`` are for choosing settings."""
    kind = "LoRA" if adapters else "full"
    weights = pretrained(seed, epochs=3 if quick else 8)
    torch.manual_seed(seed)
    model = bert(labels=10)
    model.load_state_dict(weights, strict=False)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"]))
    model.train()

    chosen = WAYS[kind][way]
    fpf = None if chosen is None else forgetless.FPF(model, CAPACITY, seed=seed, **(chosen | settings))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=rate or RATES[kind])
    x, y = documents()["without validation" if validation else "stream"]
    for rows in stream(y, seed, epochs=2 if quick else EPOCHS):
        batch, labels = take(x, rows), y[rows]
        logits = model(**batch).logits
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fpf:
            fpf.observe(batch, labels, logits)

    test = documents()["validation" if validation else "test"]
    before = accuracy(model, *test)
    if fpf:
        fpf.finish()
    total = sum(parameter.numel() for parameter in model.parameters())
    return Outcome(before, accuracy(model, *test), sum(p.numel() for p in trainable) / total, fpf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adapters", action="store_true", help="train LoRA adapters and the classifier only")
    parser.add_argument("--quick", action="store_true", help="less pretraining, fewer epochs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # more threads do not pay off for such small batches
    outcomes = {way: run(way, arguments.seed, arguments.adapters, arguments.quick) for way in WAYS["full"]}
    plain = outcomes["plain"]
    print(f"accuracy in % over all ten classes after five tasks of two; trained: {plain.trained:.1%} of the parameters")
    print(f"{'':<6} {'before':>7} {'after':>7} {'gain':>7}  repaired")
    for way, outcome in outcomes.items():
        gain = outcome.after - plain.after
        print(f"{way:<6} {outcome.before:>7.1f} {outcome.after:>7.1f} {gain:>+7.1f}  {outcome.repaired:.2%}")
    print("before, after: the last repair; gain: over plain finetuning; repaired: share of the parameters")
    for way, outcome in outcomes.items():
        if outcome.fpf:
            print(f"\nforgetting profile, {way}\n{outcome.fpf.profile()}")


if __name__ == "__main__":
    main()
