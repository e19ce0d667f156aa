"""The hyperparameter grids that columns.py searches, one per column and buffer size.

A key is a stream, perhaps with a network or the epochs per task; ``…-200`` is the grid for buffer 200. A row such as
``fpf+er`` has a list of grids, and each grid expands into the product of its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

Point = dict[str, Any]
Grid = dict[str, list[Any]]

# These points differ only in FPF's finetuning, so that they share one training.
HIGH_RATES: Grid = {"ft_lr": [0.1, 0.3], "threshold": [1.0, 0.1]}
LOW_RATES: Grid = {"ft_lr": [0.1, 0.03], "threshold": [1.0, 0.1]}
DENSE: Grid = {"lr": [0.05], "ft_lr": [0.05], "every": [100], "steps": [100], "threshold": [0.1]}
# Finetuning on crops where the stream has none, and more often, with no more FLOPs than DER++.
CROPPED: list[Grid] = [
    {**DENSE, "lr": [0.03], "kd": [0.1], "ft_pad": [2, 4]},
    {**DENSE, "lr": [0.03], "kd": [0.2], "ft_pad": [4]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "every": [50]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "every": [50], "ft_pad": [4]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "ft_lr": [0.1], "ft_pad": [4]},
]
BALANCED: Grid = {"policy": ["balanced"]}  # the buffer holds equally many examples per class
LARGE_CROPS: list[Grid] = [
    {"lr": [0.05], "ft_lr": [0.03], "every": [100, 50], "kd": [0.2], "threshold": [0.1], "ft_pad": [14, 28]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.1], "threshold": [0.1], "ft_pad": [28]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [50], "kd": [0.2], "threshold": [0.1], "ft_pad": [56]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.2], "threshold": [0.1], "ft_pad": [28], **BALANCED},
]

# Coarse grids around the values of the paper and of the DER authors. ``k-fpf-dense`` is k-FPF-CE that finetunes more
# often, with no more FLOPs than ER; ``k-fpf-dense-kd`` adds distillation. ``k-fpf+der``, ``k-fpf+er`` and
# ``k-fpf+masked`` apply k-FPF to those methods. A grid for buffer 200 holds the choice for 500 and its neighbours.
GRIDS: dict[str, dict[str, list[Grid]]] = {
    "seq-cifar10": {
        "k-fpf-ce": [
            {"lr": [0.01, 0.03], "ft_lr": [0.03, 0.05, 0.075], "every": [500]},
            {"lr": [0.01], "ft_lr": [0.03, 0.05], "every": [500], "threshold": [0.1, 0.0]},
            {"lr": [0.03, 0.05], "ft_lr": [0.05, 0.075], "every": [500], "threshold": [0.1]},
            {"lr": [0.01, 0.03], "ft_lr": [0.03], "every": [250], "threshold": [0.1]},
            {"lr": [0.03, 0.05], "ft_lr": [0.05], "every": [250], "threshold": [0.1]},
        ],
        "k-fpf-kd": [
            {"lr": [0.01], "ft_lr": [0.03, 0.05], "every": [500], "kd": [0.1, 0.5]},
            {"lr": [0.01], "ft_lr": [0.03], "every": [500], "kd": [0.1], "threshold": [0.1]},
            {"lr": [0.01], "ft_lr": [0.03], "every": [500], "kd": [0.05, 0.2], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.03, 0.05], "every": [500], "kd": [0.1], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05, 0.075], "every": [500], "kd": [0.05], "threshold": [0.1]},
            {"lr": [0.05], "ft_lr": [0.05, 0.075], "every": [500], "kd": [0.05, 0.1], "threshold": [0.1]},
            {"lr": [0.01], "ft_lr": [0.03], "every": [500], "kd": [0.05], "threshold": [0.1], **BALANCED},
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.05, 0.1], "threshold": [0.1], **BALANCED},
            {"lr": [0.01], "ft_lr": [0.03], "every": [500], "kd": [0.05], "threshold": [0.1], "ft_pad": [4, 8]},
            {
                "lr": [0.01],
                "ft_lr": [0.03],
                "every": [500],
                "kd": [0.05],
                "threshold": [0.1],
                "ft_pad": [6],
                **BALANCED,
            },
            {"lr": [0.01, 0.03], "ft_lr": [0.03], "every": [250], "kd": [0.05], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05], "every": [250], "kd": [0.05, 0.1], "threshold": [0.1]},
            {"lr": [0.05], "ft_lr": [0.05], "every": [250], "kd": [0.05], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05], "every": [200], "kd": [0.05], "threshold": [0.1]},
        ],
        "k-fpf-dense": [
            {"lr": [0.01, 0.03, 0.05], "ft_lr": [0.01, 0.03, 0.05], "every": [100], "steps": [100]},
            {"lr": [0.05], "ft_lr": [0.05, 0.1], "every": [100], "steps": [100], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05], "every": [100], "steps": [100], "threshold": [0.1]},
        ],
        "k-fpf-dense-kd": [{**DENSE, "kd": [0.05, 0.1, 0.2]}],
        "k-fpf+masked": [
            {**DENSE, "kd": [0.0]},
            {**DENSE, "kd": [0.0], "lr": [0.03, 0.1]},
            {**DENSE, "kd": [0.0], "ft_lr": [0.1]},
            {**DENSE, "kd": [0.0], "every": [50], "steps": [50]},
            {**DENSE, "kd": [0.05, 0.1, 0.2]},
            {**DENSE, "kd": [0.1], "lr": [0.03]},
            {**DENSE, "kd": [0.1], "threshold": [0.0]},
            {**DENSE, "kd": [0.2], "every": [50], "steps": [50]},
            {**DENSE, "kd": [0.2], "steps": [200]},
            {**DENSE, "kd": [0.2], "lr": [0.03], "ft_lr": [0.03]},
        ],
        "fpf+er": [{"ft_lr": [0.1, 0.03, 0.01]}],
        "fpf+der": [{"ft_lr": [0.1, 0.03, 0.01]}],
        "fpf+derpp": [{"ft_lr": [0.1, 0.03, 0.01]}],
        "fpf+fdr": [{"lr": [0.03], "alpha": [0.3, 1.0, 3.0], **LOW_RATES}],
        "fpf+agem": [
            {"ft_lr": [0.1, 0.03]},
            {"lr": [0.01, 0.03, 0.1], **HIGH_RATES},
        ],
        "fpf+icarl": [{"ft_lr": [0.1, 0.03]}],
        "k-fpf+der": [{"ft_lr": [0.03, 0.1], "every": [500, 200], "threshold": [0.1]}],
        "k-fpf+er": [{"ft_lr": [0.05, 0.1], "every": [500], "threshold": [0.1]}],
        "sgd": [{}],
        "joint": [{}, {"lr": [0.01, 0.03]}],
        "oewc": [{}],
        "gdumb": [{}],
    },
    "seq-cifar10-200": {
        "k-fpf-ce": [
            {"lr": [0.01], "ft_lr": [0.03, 0.05], "every": [500], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1]},
        ],
        "k-fpf-kd": [
            {"lr": [0.01], "ft_lr": [0.03], "every": [500], "kd": [0.1, 0.2], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.1], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.03, 0.05], "every": [500], "kd": [0.05, 0.2], "threshold": [0.1]},
            {"lr": [0.05], "ft_lr": [0.05, 0.075], "every": [500], "kd": [0.1], "threshold": [0.1]},
        ],
        "k-fpf-dense": [{"lr": [0.03, 0.05], "ft_lr": [0.05], "every": [100], "steps": [100], "threshold": [0.1]}],
        "k-fpf+masked": [
            {**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1, 0.2]},
            {**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1, 0.2], **BALANCED},
            {**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1], "ft_pad": [6], **BALANCED},
            {**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1, 0.2], "every": [50]},
            {**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1], "steps": [200]},
        ],
        "fpf+er": [
            {"ft_lr": [0.1, 0.03, 0.3]},
            {"lr": [0.03], "ft_lr": [0.1, 0.3]},
            {"lr": [0.01], **HIGH_RATES},
            {"lr": [0.03], **HIGH_RATES, "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.03, 0.01], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [1.0]},
        ],
        "fpf+der": [{"ft_lr": [0.1, 0.03]}],
        "fpf+derpp": [{"ft_lr": [0.1, 0.03]}],
        "fpf+fdr": [{"lr": [0.03], "alpha": [0.3, 1.0, 3.0], **LOW_RATES}],
        "fpf+agem": [
            {"ft_lr": [0.1, 0.3]},
            {"lr": [0.01, 0.03, 0.1], **HIGH_RATES},
            {"lr": [0.01, 0.03], "ft_lr": [0.03, 0.01], "threshold": [0.1]},
        ],
        "fpf+icarl": [{"ft_lr": [0.1, 0.03]}, {"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1], "threshold": [1.0, 0.1]}],
        "k-fpf+der": [{"ft_lr": [0.03, 0.1], "every": [500], "threshold": [0.1]}],
        "gdumb": [{}],
    },
    "seq-organamnist": {
        "k-fpf-ce": [
            {"lr": [0.03, 0.1], "ft_lr": [0.05, 0.1], "every": [500], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.1, 0.2], "every": [500], "threshold": [0.3]},
        ],
        "k-fpf-kd": [
            {"lr": [0.1], "ft_lr": [0.1], "every": [500], "kd": [0.1, 0.2, 0.5], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.15], "ft_lr": [0.1, 0.15], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.2], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.1], "every": [500], "kd": [0.2], "threshold": [0.1], "ft_pad": [2, 4]},
        ],
        "k-fpf+masked": [
            {**DENSE, "lr": [0.03, 0.1], "ft_lr": [0.05, 0.1], "kd": [0.1]},
            {**DENSE, "lr": [0.03], "kd": [0.3]},
            *CROPPED,
        ],
        "k-fpf-dense": [{"lr": [0.03, 0.1], "ft_lr": [0.05, 0.1], "every": [100], "steps": [100], "threshold": [0.1]}],
        "fpf+er": [{"ft_lr": [0.1, 0.03]}],
        "fpf+der": [{"ft_lr": [0.1, 0.03]}],
        "fpf+derpp": [{"ft_lr": [0.1, 0.03]}],
        "fpf+fdr": [{"lr": [0.1], "alpha": [1.0, 3.0], **LOW_RATES}],
        "fpf+agem": [{"ft_lr": [0.1]}, {"lr": [0.03, 0.1], "ft_lr": [0.1], "threshold": [0.1]}],
        "fpf+icarl": [{"ft_lr": [0.1, 0.03]}],
        "sgd": [{}],
        "joint": [{}, {"lr": [0.01, 0.03]}],
        "oewc": [{}],
        "gdumb": [{}],
    },
    "seq-organamnist-200": {
        "k-fpf-ce": [{"lr": [0.03, 0.1], "ft_lr": [0.05], "every": [500], "threshold": [0.1]}],
        "k-fpf-kd": [
            {"lr": [0.1], "ft_lr": [0.05, 0.1], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.1], "every": [500], "kd": [0.1, 0.5], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.15], "every": [500], "kd": [0.2, 0.5], "threshold": [0.1]},
            {"lr": [0.05], "ft_lr": [0.1], "every": [500], "kd": [0.2, 0.5], "threshold": [0.1]},
            {"lr": [0.15], "ft_lr": [0.15, 0.2], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.2], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1]},
            {"lr": [0.15], "ft_lr": [0.15], "every": [500], "kd": [0.1], "threshold": [0.1]},
            {"lr": [0.1], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1], "ft_pad": [2, 4]},
            {"lr": [0.1], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1], **BALANCED},
            {"lr": [0.1], "ft_lr": [0.15], "every": [500], "kd": [0.2], "threshold": [0.1], "ft_pad": [2], **BALANCED},
        ],
        "k-fpf+masked": [{**DENSE, "lr": [0.03], "ft_lr": [0.05, 0.1], "kd": [0.1]}, *CROPPED],
        "fpf+er": [{"ft_lr": [0.1]}, {"lr": [0.03], "ft_lr": [0.1]}],
        "fpf+der": [{"ft_lr": [0.03]}],
        "fpf+derpp": [
            {"ft_lr": [0.03]},
            {"lr": [0.03, 0.1], "alpha": [0.2, 0.5], "ft_lr": [0.03, 0.1], "threshold": [1.0, 0.1]},
        ],
        "fpf+fdr": [{"lr": [0.1], "alpha": [1.0, 3.0], **LOW_RATES}, {"lr": [0.03], "alpha": [1.0, 3.0], **LOW_RATES}],
        "fdr": [{"lr": [0.03, 0.1], "alpha": [1.0, 3.0]}, {"lr": [0.1], "alpha": [0.3]}],
        "fpf+agem": [{"lr": [0.1], "ft_lr": [0.1], "threshold": [0.1]}],
        "fpf+icarl": [{"ft_lr": [0.1]}],
        "gdumb": [{}],
    },
    "rot-mnist": {  # runs on a CPU
        "k-fpf-ce": [
            {"lr": [0.1, 0.2], "ft_lr": [0.05, 0.1, 0.2], "every": [500]},
            {"lr": [0.2], "ft_lr": [0.1], "every": [200, 1500]},
            {"lr": [0.2], "ft_lr": [0.3, 0.5], "every": [500]},
            {"lr": [0.3], "ft_lr": [0.2], "every": [500]},
            {"lr": [0.2], "ft_lr": [0.2], "every": [200]},
        ],
        "k-fpf-kd": [
            {"lr": [0.1, 0.2], "ft_lr": [0.1], "every": [500], "kd": [0.1, 0.5, 1.0]},
            {"lr": [0.2], "ft_lr": [0.2], "every": [500], "kd": [0.5, 1.0]},
            {"lr": [0.2], "ft_lr": [0.1], "every": [200], "kd": [0.2, 0.5]},
            {"lr": [0.2], "ft_lr": [0.1], "every": [100], "kd": [0.5]},
            {"lr": [0.3], "ft_lr": [0.1], "every": [200], "kd": [0.5]},
            {"lr": [0.2], "ft_lr": [0.15], "every": [200], "kd": [0.3]},
        ],
    },
    "seq-pathmnist": {
        "fpf+derpp": [{"lr": [0.03], "ft_lr": [0.03, 0.1], "threshold": [1.0, 0.1]}],
        "k-fpf+masked": [{**DENSE, "lr": [0.03], "ft_lr": [0.03, 0.1], "kd": [0.1]}],
        "k-fpf-dense": [{**DENSE, "lr": [0.03], "kd": [0.0, 0.1]}],
        "fpf+er": [{"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1], "threshold": [1.0, 0.1]}],
        "k-fpf-ce": [
            {"lr": [0.01, 0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.1], "every": [500], "threshold": [0.1]},
        ],
        "k-fpf-kd": [
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.1, 0.2], "threshold": [0.1]},
            {"lr": [0.01], "ft_lr": [0.05], "every": [500], "kd": [0.1], "threshold": [0.1]},
        ],
        "joint": [{"lr": [0.01, 0.03]}],
        "sgd": [{}],
    },
    "seq-pathmnist-200": {
        "fpf+derpp": [{"lr": [0.03], "ft_lr": [0.03], "threshold": [0.1]}],
        "k-fpf+masked": [{**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.1]}],
        "k-fpf-dense": [{**DENSE, "lr": [0.03], "kd": [0.0, 0.1]}],
        "fpf+er": [{"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1], "threshold": [1.0, 0.1]}],
        "k-fpf-ce": [{"lr": [0.01, 0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.1], "threshold": [0.1]}],
    },
    "seq-pacs": {
        "fpf+derpp": [
            {"lr": [0.03], "alpha": [0.1, 0.5], "ft_lr": [0.03, 0.1, 0.3], "threshold": [1.0, 0.1]},
            {"lr": [0.1], "ft_lr": [0.03, 0.1, 0.3], "threshold": [1.0, 0.1]},
        ],
        "fpf+er": [{"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1, 0.3], "threshold": [1.0, 0.1]}],
        "k-fpf-ce": [{"lr": [0.03, 0.05], "ft_lr": [0.03, 0.075], "every": [100, 250], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.1, 0.2, 0.5], "threshold": [0.1]}],
        "k-fpf-dense": [
            {"lr": [0.05], "ft_lr": [0.03, 0.05], "every": [50], "kd": [0.0, 0.2], "threshold": [0.1]},
            *LARGE_CROPS,
        ],
        "joint": [{"lr": [0.01, 0.03, 0.1]}],
        "sgd": [{}],
    },
    "seq-pacs-200": {
        "fpf+derpp": [{"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1, 0.3], "threshold": [1.0, 0.1]}],
        "fpf+er": [
            {"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1, 0.3], "threshold": [1.0, 0.1]},
            {"lr": [0.03, 0.1], "ft_lr": [0.01, 0.05], "threshold": [0.1]},
            {"lr": [0.03, 0.1], "ft_lr": [0.03, 0.1], "threshold": [0.1], "ft_pad": [28]},
        ],
        "k-fpf-ce": [{"lr": [0.05], "ft_lr": [0.03, 0.05], "every": [100], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.1, 0.5], "threshold": [0.1]}],
        "k-fpf-dense": [
            {"lr": [0.05], "ft_lr": [0.03], "every": [50], "kd": [0.0, 0.2], "threshold": [0.1]},
            *LARGE_CROPS,
        ],
    },
    "seq-tinyimagenet": {
        "fpf+derpp": [{"ft_lr": [0.05, 0.1, 0.3], "threshold": [1.0, 0.1]}],
        "fpf+er": [{"ft_lr": [0.05, 0.1, 0.3], "threshold": [1.0, 0.1]}],
        "k-fpf-ce": [{"lr": [0.03, 0.05], "ft_lr": [0.05, 0.1], "every": [500], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.2, 0.5], "threshold": [0.1]}],
        "k-fpf+masked": [{**DENSE, "lr": [0.03], "kd": [0.2]}],
        "joint": [{}],
        "sgd": [{}],
    },
    "seq-tinyimagenet-200": {
        "fpf+derpp": [{"ft_lr": [0.1], "threshold": [0.1]}],
        "fpf+er": [{"ft_lr": [0.3], "threshold": [1.0]}],
        "k-fpf-ce": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.2], "threshold": [0.1]}],
        "k-fpf+masked": [
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.2], "threshold": [0.1], **BALANCED},
            {"lr": [0.03], "ft_lr": [0.05], "every": [500], "kd": [0.2], "threshold": [0.1], "policy": ["reservoir"]},
        ],
    },
    "seq-cifar10-vgg11": {  # smaller learning rates, because VGG-11 has no batch norm
        "k-fpf-ce": [{"lr": [0.01, 0.03], "ft_lr": [0.01, 0.03], "every": [500], "threshold": [0.3, 0.1]}],
        "fpf+er": [{"lr": [0.01, 0.03, 0.1], **LOW_RATES}],
        "fpf+agem": [{"lr": [0.01, 0.03], **LOW_RATES}],
        "fpf+icarl": [{"lr": [0.03, 0.1], **LOW_RATES}],
        "fpf+fdr": [{"lr": [0.01, 0.03], "alpha": [1.0], **LOW_RATES}],
        "fpf+der": [{"lr": [0.01, 0.03], **LOW_RATES}],
        "fpf+derpp": [{"lr": [0.01, 0.03], **LOW_RATES}],
        "joint": [{"lr": [0.01, 0.03]}],
        "sgd": [{"lr": [0.01, 0.03]}],
        "oewc": [{"lr": [0.01, 0.03]}],
        "gdumb": [{}],
    },
    "seq-cifar10-12-epochs": {"recipe": [{}, {"budget": [1.9], "lr_decay": [1.0, 0.2]}]},  # chooses for 50 epochs
    "seq-cifar10-50-epochs": {  # a point takes ten times as long, so most settings are those of 5 epochs
        "recipe": [{"budget": [1.9]}],
        "k-fpf-ce": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1]}],
        "k-fpf-kd": [{"lr": [0.03], "ft_lr": [0.05], "every": [500], "threshold": [0.1], "kd": [0.05, 0.1]}],
        "k-fpf+masked": [{**DENSE, "lr": [0.03], "ft_lr": [0.03], "kd": [0.2], "lr_decay": [1.0, 0.2]}],
        "fpf+der": [LOW_RATES],
        "fpf+derpp": [LOW_RATES],
        "fpf+er_ace": [{"lr": [0.03, 0.1], **LOW_RATES}],
        "fpf+cls_er": [{"plastic_decay": [0.999], "stable_decay": [0.999], **LOW_RATES}],
        "fpf+xder_rpc": [{"lr_decay": [0.2], **LOW_RATES}],  # as its authors do
        "fpf+star": [LOW_RATES],
    },
    "seq-digits": {  # for trying the script
        "k-fpf-ce": [{"lr": [0.1], "ft_lr": [0.05, 0.1]}],
        "k-fpf-kd": [{"kd": [0.1]}],
        "fpf+er": [{"ft_lr": [0.1, 0.03]}],
        "sgd": [{}],
    },
    "seq-digits-50-epochs": {"recipe": [{}], "fpf+er_ace": [LOW_RATES]},
}


def grids_for(column: str, buffer: int) -> dict[str, list[Grid]]:
    """Return the grids of a column by row, those of this buffer size where they exist."""
    return GRIDS.get(f"{column}-{buffer}", GRIDS[column])


def points(grids: list[Grid]) -> Iterator[Point]:
    """Yield every point of some grids."""
    for grid in grids:
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))
