"""PACS (Li et al. 2017): ``PACS/<domain>/<class>/*``, resized to 224 × 224.

Deviation: the paper names no split, so a stratified fifth of each domain, drawn once, is its test set.
"""

from pathlib import Path

import torch

from forgetless.data.holdout import stratified
from forgetless.data.readers.files import corrupt, existing
from forgetless.data.readers.images import decode_cached, labelled_files
from forgetless.data.stream import Split

COUNTS = {"sketch": 3929, "cartoon": 2344, "art_painting": 2048, "photo": 1670}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def read(root: Path, size: int = 224) -> dict[str, tuple[Split, Split]]:
    """Return the training and test examples by domain."""
    return {domain: _read_domain(root, domain, size) for domain in COUNTS}


def _read_domain(root: Path, domain: str, size: int) -> tuple[Split, Split]:
    folder = existing(root / "PACS" / domain, "pacs")
    paths, y = labelled_files(folder / name for name in CLASSES)
    if len(paths) != COUNTS[domain]:
        raise corrupt(folder, "pacs", f"it holds {len(paths)} images, expected {COUNTS[domain]}")
    examples = Split(decode_cached(paths, size, root, f"pacs-{domain}"), y)
    held_out = stratified(y, 0.2, torch.Generator().manual_seed(0))
    return examples.where(~held_out), examples.where(held_out)
