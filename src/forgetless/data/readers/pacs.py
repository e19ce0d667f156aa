"""PACS (Li et al. 2017): ``PACS/<domain>/<class>/*``, resized to 224 × 224.

The paper names no split; here a stratified fifth of each domain, drawn once, is its test set.
"""

from __future__ import annotations

from pathlib import Path

import torch

from forgetless.data.readers.files import damaged, need
from forgetless.data.readers.images import ENDINGS, cached
from forgetless.data.stream import Split, stratified

COUNTS = {"sketch": 3929, "cartoon": 2344, "art_painting": 2048, "photo": 1670}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def read(root: Path, size: int = 224) -> dict[str, tuple[Split, Split]]:
    domains = {}
    for domain, count in COUNTS.items():
        folder = need(root / "PACS" / domain, "pacs")
        files = [(path, label) for label, name in enumerate(CLASSES) for path in sorted((folder / name).rglob("*"))]
        files = [(path, label) for path, label in files if path.suffix.lower() in ENDINGS]
        if len(files) != count:
            raise damaged(folder, "pacs", f"{len(files)} images, must be {count}")
        x = cached(root, "pacs", {domain: [path for path, _ in files]}, size)[domain]
        y = torch.tensor([label for _, label in files])
        held = stratified(y, 0.2, torch.Generator().manual_seed(0))
        whole = Split(x, y)
        domains[domain] = (whole.of((~held).nonzero()[:, 0]), whole.of(held.nonzero()[:, 0]))
    return domains
