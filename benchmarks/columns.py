"""A column of the paper's main table on a GPU: settings chosen on validation, then several seeds on all images.

    python benchmarks/columns.py search --stream seq-cifar10 --buffer 500 --work FOLDER
    python benchmarks/columns.py confirm --stream seq-cifar10 --buffer 500 --rows k-fpf-kd --seeds 3 --work FOLDER
    python benchmarks/columns.py final --stream seq-cifar10 --buffer 500 --work FOLDER
    python benchmarks/columns.py keep --stream seq-cifar10 --buffer 500 --work FOLDER

With ``--network vgg11`` the column is that of another network than the stream's own, with grids of its own.
``search`` trains every point of the grids below with a tenth of the training images held out, all in one pack of lanes,
and writes FOLDER/chosen-….json; ``confirm``, where two points are close, trains the best two with further seeds there
and chooses by the mean; ``final`` trains the best point of each row with seeds 0, 1, …; ``keep`` copies the
records of the final runs, less what takes room, and the choice into results/. What has a record in FOLDER is not done
again, so each can be stopped at any moment. A row ``fpf+er`` holds ``er`` too: its accuracies before the finetuning.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from committed import add, search_file
from forgetless.experiments import record
from forgetless.experiments import run as build
from forgetless.experiments.settings import Settings, resolve
from forgetless.paper.reproduce import way
from provenance import provenance

Point = dict[str, Any]
Grid = dict[str, list[Any]]

TAIL: Grid = {"ft_lr": [0.1, 0.3], "threshold": [1.0, 0.1]}  # of FPF: points that share a training
SPARING: Grid = {"ft_lr": [0.1, 0.03], "threshold": [1.0, 0.1]}
DENSE: Grid = {"lr": [0.05], "ft_lr": [0.05], "every": [100], "steps": [100], "threshold": [0.1]}
# Finetuned on crops, where the stream has none; and more often, for no more FLOPs than DER++.
CROPPED: list[Grid] = [
    {**DENSE, "lr": [0.03], "kd": [0.1], "ft_pad": [2, 4]},
    {**DENSE, "lr": [0.03], "kd": [0.2], "ft_pad": [4]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "every": [50]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "every": [50], "ft_pad": [4]},
    {**DENSE, "lr": [0.03], "kd": [0.1], "ft_lr": [0.1], "ft_pad": [4]},
]
BALANCED: Grid = {"policy": ["balanced"]}  # the buffer holds equal shares of the classes
LARGE_CROPS: list[Grid] = [
    {"lr": [0.05], "ft_lr": [0.03], "every": [100, 50], "kd": [0.2], "threshold": [0.1], "ft_pad": [14, 28]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.1], "threshold": [0.1], "ft_pad": [28]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [50], "kd": [0.2], "threshold": [0.1], "ft_pad": [56]},
    {"lr": [0.05], "ft_lr": [0.03], "every": [100], "kd": [0.2], "threshold": [0.1], "ft_pad": [28], **BALANCED},
]

# Coarse grids around the paper's and the DER authors'. ``k-fpf-dense`` is k-FPF-CE with more finetuning, for no more
# FLOPs than ER, ``k-fpf-dense-kd`` that with distillation; ``k-fpf+der``, ``k-fpf+er`` and ``k-fpf+masked`` are k-FPF
# around those methods. ``…-200``: what buffer 500 chose and its neighbours.
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
        "fpf+fdr": [{"lr": [0.03], "alpha": [0.3, 1.0, 3.0], **SPARING}],
        "fpf+agem": [
            {"ft_lr": [0.1, 0.03]},
            {"lr": [0.01, 0.03, 0.1], **TAIL},
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
            {"lr": [0.01], **TAIL},
            {"lr": [0.03], **TAIL, "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [0.03, 0.01], "threshold": [0.1]},
            {"lr": [0.03], "ft_lr": [1.0]},
        ],
        "fpf+der": [{"ft_lr": [0.1, 0.03]}],
        "fpf+derpp": [{"ft_lr": [0.1, 0.03]}],
        "fpf+fdr": [{"lr": [0.03], "alpha": [0.3, 1.0, 3.0], **SPARING}],
        "fpf+agem": [
            {"ft_lr": [0.1, 0.3]},
            {"lr": [0.01, 0.03, 0.1], **TAIL},
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
        "fpf+fdr": [{"lr": [0.1], "alpha": [1.0, 3.0], **SPARING}],
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
        "fpf+fdr": [{"lr": [0.1], "alpha": [1.0, 3.0], **SPARING}, {"lr": [0.03], "alpha": [1.0, 3.0], **SPARING}],
        "fdr": [{"lr": [0.03, 0.1], "alpha": [1.0, 3.0]}, {"lr": [0.1], "alpha": [0.3]}],
        "fpf+agem": [{"lr": [0.1], "ft_lr": [0.1], "threshold": [0.1]}],
        "fpf+icarl": [{"ft_lr": [0.1]}],
        "gdumb": [{}],
    },
    "rot-mnist": {  # on a CPU
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
    "seq-cifar10-vgg11": {  # no batch norm: smaller learning rates
        "k-fpf-ce": [{"lr": [0.01, 0.03], "ft_lr": [0.01, 0.03], "every": [500], "threshold": [0.3, 0.1]}],
        "fpf+er": [{"lr": [0.01, 0.03, 0.1], **SPARING}],
        "fpf+agem": [{"lr": [0.01, 0.03], **SPARING}],
        "fpf+icarl": [{"lr": [0.03, 0.1], **SPARING}],
        "fpf+fdr": [{"lr": [0.01, 0.03], "alpha": [1.0], **SPARING}],
        "fpf+der": [{"lr": [0.01, 0.03], **SPARING}],
        "fpf+derpp": [{"lr": [0.01, 0.03], **SPARING}],
        "joint": [{"lr": [0.01, 0.03]}],
        "sgd": [{"lr": [0.01, 0.03]}],
        "oewc": [{"lr": [0.01, 0.03]}],
        "gdumb": [{}],
    },
    "seq-digits": {  # to try the script
        "k-fpf-ce": [{"lr": [0.1], "ft_lr": [0.05, 0.1]}],
        "k-fpf-kd": [{"kd": [0.1]}],
        "fpf+er": [{"ft_lr": [0.1, 0.03]}],
        "sgd": [{}],
    },
}


def column(arguments: argparse.Namespace) -> str:
    """The stream, and the network where it is not the stream's own."""
    return "-".join(filter(None, (arguments.stream, arguments.network)))


def grids_of(column: str, buffer: int) -> dict[str, list[Grid]]:
    return GRIDS.get(f"{column}-{buffer}", GRIDS[column])


def points(grids: list[Grid]) -> Iterator[Point]:
    for grid in grids:
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))


def settings(
    row: str, point: Point, seed: int, buffer: int, arguments: argparse.Namespace, *, validation: bool
) -> Settings:
    if row.startswith("k-fpf+"):
        method, given = row.removeprefix("k-fpf+"), {"repair": "k-fpf"}
    else:
        method, given = way("k-fpf-ce" if row.startswith("k-fpf-dense") else row, arguments.stream)
    common = {"buffer": buffer, "seed": seed, "device": arguments.device, "validation": validation}
    common |= {"network": arguments.network} if arguments.network else {}
    common |= {"anytime": True} if arguments.anytime and not validation else {}
    return resolve(arguments.stream, method, {**given, **point, **common})[0]


def run(runs: list[Settings], arguments: argparse.Namespace) -> None:
    """All of them in lanes; says how each ended."""
    began = time.perf_counter()
    for done, (one, made) in enumerate(build.run_lanes(runs, arguments.lanes, arguments.work), start=1):
        shown = (
            f"{made.accuracy:.2f}" if isinstance(made, record.Record) else f"{type(made.error).__name__}: {made.error}"
        )
        shown_settings = ("buffer", "lr", "ft_lr", "every", "kd", "ft_pad", "policy", "threshold")
        given = {name: one.to_dict().get(name) for name in shown_settings} | dict(one.options)
        point = " ".join(f"{name} {value}" for name, value in given.items() if value)
        print(
            f"{time.perf_counter() - began:6.1f} s  {done}/{len(runs)}  {one.label} seed {one.seed} {point}: {shown}",
            flush=True,
        )


def chosen_path(folder: Path, buffer: int, arguments: argparse.Namespace) -> Path:
    return folder / f"chosen-{column(arguments)}-{buffer}.json"


def wanted(buffer: int, arguments: argparse.Namespace) -> list[str]:
    """Those of the rows asked for that this buffer has a grid of."""
    own = grids_of(column(arguments), buffer)
    asked = arguments.rows.split(",") if arguments.rows else list(own)
    known = {row for size in arguments.buffer for row in grids_of(column(arguments), size)}
    if unknown := set(asked) - known:
        raise ValueError(f"rows is {arguments.rows}; there is no grid of {', '.join(sorted(unknown))}")
    return [row for row in own if row in asked]


def search(arguments: argparse.Namespace) -> None:
    """All buffers and rows in one pack. Points that differ only in FPF's finetuning share a training."""
    planned: dict[tuple[int, str], Settings] = {}
    known: dict[tuple[int, str], dict[str, Any]] = {}
    found: dict[int, dict[str, Any]] = {}
    for buffer in arguments.buffer:
        file = chosen_path(arguments.work, buffer, arguments)
        found[buffer] = json.loads(file.read_text())["rows"] if file.exists() else {}
        for row, own in found[buffer].items():
            known |= {
                (buffer, json.dumps([row, entry["point"]])): entry
                for entry in own["grid"]
                if entry["validation_accuracy"] is not None
            }
        for row in wanted(buffer, arguments):
            own = list(points(grids_of(column(arguments), buffer)[row]))
            for point in own:
                key = (buffer, json.dumps([row, point]))
                if len(own) > 1 and key not in known:
                    planned[key] = settings(row, point, 0, buffer, arguments, validation=True)
    run(list(planned.values()), arguments)
    for buffer in arguments.buffer:
        for row in wanted(buffer, arguments):
            tried: list[dict[str, Any]] = []
            for point in points(grids_of(column(arguments), buffer)[row]):
                key = (buffer, json.dumps([row, point]))
                made = record.find(arguments.work, planned[key]) if key in planned else None
                accuracy = None if made is None else made.accuracy
                tried.append(known.get(key, {"point": point, "validation_accuracy": accuracy}))
            best = max(tried, key=lambda entry: entry["validation_accuracy"] or 0.0)
            found[buffer][row] = {"chosen": best["point"], "grid": tried}
            print(buffer, row, best)
        values = {"rows": found[buffer], **provenance(arguments.device)}
        record.write_json(values, chosen_path(arguments.work, buffer, arguments))


def confirm(arguments: argparse.Namespace) -> None:
    """Of each row, the two best points with all seeds on the validation split; the mean of each takes its place."""
    found = {b: json.loads(chosen_path(arguments.work, b, arguments).read_text()) for b in arguments.buffer}
    pairs = [
        (buffer, row, entry)
        for buffer, own in found.items()
        for row in wanted(buffer, arguments)
        for entry in sorted(own["rows"][row]["grid"], key=lambda entry: -(entry["validation_accuracy"] or 0.0))[:2]
    ]
    planned = [
        [settings(row, entry["point"], seed, buffer, arguments, validation=True) for seed in range(arguments.seeds)]
        for buffer, row, entry in pairs
    ]
    run([one for seeds in planned for one in seeds if one.seed], arguments)  # the search had seed 0
    for (_, _, entry), seeds in zip(pairs, planned, strict=True):
        further = [record.of(arguments.work, one).accuracy for one in seeds if one.seed]
        first = entry.get("validation_accuracies", [entry["validation_accuracy"]])[0]
        entry["validation_accuracies"] = [first, *further]
        entry["validation_accuracy"] = round(fmean(entry["validation_accuracies"]), 3)
    for buffer, row, entry in pairs:
        own = found[buffer]["rows"][row]
        if entry["validation_accuracy"] == max(point["validation_accuracy"] or 0.0 for point in own["grid"]):
            own["chosen"] = entry["point"]
            print(buffer, row, entry)
    for buffer, own in found.items():
        record.write_json(own, chosen_path(arguments.work, buffer, arguments))


def finals(buffer: int, arguments: argparse.Namespace) -> list[Settings]:
    chosen = json.loads(chosen_path(arguments.work, buffer, arguments).read_text())["rows"]
    return [
        settings(row, chosen[row]["chosen"], seed, buffer, arguments, validation=False)
        for row in wanted(buffer, arguments)
        if row in chosen
        for seed in range(arguments.seeds)
    ]


def finished(runs: Iterable[Settings], work: Path, *, whole: bool = False) -> Iterator[record.Record]:
    """Yield the records of the finished runs, without the changes of single tensors unless ``whole``."""
    for settings in runs:
        made = record.find(work, settings)
        if made is None:
            print(f"no record of {settings.label} seed {settings.seed}")
        else:
            yield made if whole else dataclasses.replace(made, tensor_changes={})


def keep(arguments: argparse.Namespace) -> None:
    """Add the records of the final runs and the search to results/."""
    for buffer in arguments.buffer:
        add(column(arguments), finished(finals(buffer, arguments), arguments.work))
        shutil.copy(chosen_path(arguments.work, buffer, arguments), search_file(column(arguments), buffer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "confirm", "final", "keep"])
    parser.add_argument(
        "--stream", default="seq-cifar10", choices=[name for name in GRIDS if not name.endswith(("-200", "-vgg11"))]
    )
    parser.add_argument("--network", help="in place of the stream's own")
    parser.add_argument("--buffer", type=int, nargs="+", default=[500])
    parser.add_argument("--rows", help="only these, with commas between")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--anytime", action="store_true", help="final, keep: finetuned and tested after each task too")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    if column(arguments) not in GRIDS:
        raise SystemExit(f"network is {arguments.network}; there are no grids of it for {arguments.stream}")
    if arguments.what == "search":
        search(arguments)
    elif arguments.what == "confirm":
        confirm(arguments)
    elif arguments.what == "final":
        run([one for buffer in arguments.buffer for one in finals(buffer, arguments)], arguments)
    else:
        keep(arguments)


if __name__ == "__main__":
    main()
