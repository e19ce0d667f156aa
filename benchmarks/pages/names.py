"""The names of rows and streams as the pages show them; records use the names of the command line."""

from __future__ import annotations

import re

STREAM_NAMES = {
    "seq-cifar10": "Seq-CIFAR-10",
    "seq-organamnist": "Seq-OrganAMNIST",
    "seq-pathmnist": "Seq-PathMNIST",
    "seq-pacs": "Seq-PACS",
    "seq-tinyimagenet": "Seq-TinyImageNet",
}
METHOD_NAMES = {
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
}
PREFIXES = {"k-fpf-all-ce": "k-FPF-ALL-CE", "k-fpf-ce": "k-FPF-CE", "k-fpf-kd": "k-FPF-KD"}
REPAIRS = {"fpf": "FPF", "fpf-all": "FPF-ALL"}


def row_name(label: str) -> str:
    """Return the name of a row, written as in the paper: ``fpf+derpp`` is FPF+DER++."""
    repair, _, method = label.partition("+")
    if repair in REPAIRS:
        return f"{REPAIRS[repair]}+{METHOD_NAMES[method]}"
    for prefix, name in PREFIXES.items():
        if label.startswith(prefix):
            return name + re.sub(r", every (\d+) steps", r", τ = \1", label.removeprefix(prefix))
    return METHOD_NAMES[label]
