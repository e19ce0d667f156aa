"""The names of rows and streams as the pages show them; records use the names of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

STREAM_NAMES = {
    "seq-cifar10": "Seq-CIFAR-10",
    "seq-organamnist": "Seq-OrganAMNIST",
    "seq-pathmnist": "Seq-PathMNIST",
    "seq-pacs": "Seq-PACS",
    "seq-tinyimagenet": "Seq-TinyImageNet",
}
PARTS = {
    "joint": "joint training",
    "sgd": "SGD",
    "oewc": "oEWC",
    "gdumb": "GDumb",
    "er": "ER",
    "agem": "A-GEM",
    "icarl": "iCaRL",
    "fdr": "FDR",
    "der": "DER",
    "derpp": "DER++",
    "er_ace": "ER-ACE",
    "cls_er": "CLS-ER",
    "star": "STAR",
    "scr": "SCR",
    "xder_rpc": "X-DER RPC",
    "fpf": "FPF",
    "fpf-all": "FPF-ALL",
    "k-fpf": "k-FPF",
    "k-fpf-ce": "k-FPF-CE",
    "k-fpf-kd": "k-FPF-KD",
    "k-fpf-all-ce": "k-FPF-ALL-CE",
    "k-fpf-dense": "k-FPF",  # the rows of a search with frequent finetunings
}


def row_name(label: str) -> str:
    """Return the name of a row, written as in the paper: ``fpf+derpp`` is FPF+DER++."""
    label, _, interval = label.partition(", every ")
    name = "+".join(PARTS.get(part, part) for part in label.split("+"))
    return f"{name}, τ = {interval.removesuffix(' steps')}" if interval else name


def column_name(stream: str, buffer: int) -> str:
    """Return the name of a column of the main table, short enough for a table."""
    return f"{STREAM_NAMES[stream].removeprefix('Seq-')}, {buffer}"


def stream_and_buffer(stream: str, buffer: int) -> str:
    """Return a stream and the size of a buffer as words of a sentence."""
    return f"{STREAM_NAMES[stream]} with {buffer} images"


def joined(words: Sequence[str]) -> str:
    """Return words as a list in a sentence."""
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def readable(text: str) -> str:
    """Return a sentence with the names of rows and streams as the pages show them."""
    for stream, name in STREAM_NAMES.items():
        text = text.replace(stream, name)
    return re.sub(r"\b(?:k-)?fpf(?:-all)?(?:-ce|-kd)?(?:\+\w+)?\b", lambda match: row_name(match.group()), text)
