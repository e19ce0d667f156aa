"""Settings to start from, as data: of the streams, of the DER authors (Buzzega et al. 2020), and the paper's grids.

A value that depends on the buffer is ``{200: …, 500: …}``; of those the nearest size is taken. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgetless.repair.settings import Finetune

Values = Mapping[str, Any]

STREAM_DEFAULTS: Mapping[str, Values] = {
    "seq-digits": {"network": "mlp", "epochs": 5, "batch": 10, "replay": 10, "lr": 0.1, "buffer": 200},
    "seq-mnist": {"network": "mlp", "epochs": 1, "batch": 10, "replay": 10, "lr": 0.03, "buffer": 500},
    "rot-mnist": {"network": "mlp", "epochs": 1, "batch": 128, "replay": 128, "lr": 0.2, "buffer": 500},
    "seq-organamnist": {"network": "resnet18", "epochs": 5, "batch": 32, "replay": 32, "lr": 0.1, "buffer": 500},
    "seq-pathmnist": {"network": "resnet18", "epochs": 5, "batch": 32, "replay": 32, "lr": 0.03, "buffer": 500},
    "seq-cifar10": {"network": "resnet18", "epochs": 5, "batch": 32, "replay": 32, "lr": 0.1, "buffer": 500},
    "seq-tinyimagenet": {"network": "resnet18", "epochs": 5, "batch": 32, "replay": 32, "lr": 0.03, "buffer": 500},
    "seq-pacs": {"network": "resnet18_imagenet", "epochs": 5, "batch": 32, "replay": 32, "lr": 0.03, "buffer": 500},
}

# The DER authors' settings, per stream and method.
DER_AUTHORS: Mapping[str, Mapping[str, Values]] = {
    "seq-mnist": {
        "sgd": {"lr": 0.03},
        "joint": {"lr": 0.03},
        "oewc": {"lr": 0.03, "penalty": 90.0, "gamma": 1.0},
        "er": {"lr": {200: 0.01, 500: 0.1}, "replay": 10},
        "agem": {"lr": 0.1, "replay": 128},
        "icarl": {"lr": 0.1},
        "fdr": {"lr": {200: 0.03, 500: 0.1}, "batch": 128, "replay": 128, "alpha": {200: 0.5, 500: 0.2}},
        "der": {"lr": 0.03, "replay": {200: 10, 500: 128}, "alpha": {200: 0.2, 500: 1.0}},
        "derpp": {
            "lr": 0.03,
            "replay": {200: 128, 500: 10},
            "alpha": {200: 0.2, 500: 1.0},
            "beta": {200: 1.0, 500: 0.5},
        },
    },
    "seq-cifar10": {
        "sgd": {"lr": 0.1},
        "joint": {"lr": 0.1},
        "oewc": {"lr": 0.03, "penalty": 10.0, "gamma": 1.0},
        "er": {"lr": 0.1},
        "agem": {"lr": 0.03},
        "icarl": {"lr": 0.1, "weight_decay": 1e-5},
        "fdr": {"lr": 0.03, "alpha": {200: 0.3, 500: 1.0}},
        "der": {"lr": 0.03, "alpha": 0.3},
        "derpp": {"lr": 0.03, "alpha": {200: 0.1, 500: 0.2}, "beta": 0.5},
    },
    "seq-tinyimagenet": {
        "sgd": {"lr": 0.03},
        "joint": {"lr": 0.03},
        "oewc": {"lr": 0.03, "penalty": 25.0, "gamma": 1.0},
        "er": {"lr": {200: 0.1, 500: 0.03}},
        "agem": {"lr": 0.01},
        "icarl": {"lr": 0.03, "weight_decay": 1e-5},
        "fdr": {"lr": 0.03, "alpha": {200: 0.3, 500: 1.0}},
        "der": {"lr": 0.03, "alpha": 0.1},
        "derpp": {"lr": 0.03, "alpha": {200: 0.1, 500: 0.2}, "beta": {200: 1.0, 500: 0.5}},
    },
    "rot-mnist": {
        "sgd": {"lr": 0.2},
        "joint": {"lr": 0.2},
        "oewc": {"lr": 0.1, "penalty": 0.7, "gamma": 1.0},
        "er": {"lr": 0.2},
        "agem": {"lr": {200: 0.1, 500: 0.3}},
        "fdr": {"lr": 0.2, "alpha": {200: 1.0, 500: 0.3}},
        "der": {"lr": 0.2, "alpha": {200: 1.0, 500: 0.5}},
        "derpp": {"lr": {200: 0.1, 500: 0.2}, "alpha": {200: 1.0, 500: 0.5}, "beta": {200: 0.5, 500: 1.0}},
    },
}

# Streams the DER authors do not have start from the nearest they have.
BORROWED = {"seq-organamnist": "seq-cifar10", "seq-pathmnist": "seq-cifar10", "seq-pacs": "seq-tinyimagenet"}

# Over all images of a task, single gradients of a large network would take longer than its training.
LARGE = ("seq-organamnist", "seq-pathmnist", "seq-cifar10", "seq-tinyimagenet", "seq-pacs")
AFFORDABLE: Mapping[str, Values] = {"oewc": {"fisher_examples": 500}, "mas": {"examples": 500}}

# Its 50 candidates are for a replay of 10: of them no 128 could be chosen. Five times as many again, as in its paper.
CANDIDATES: Mapping[str, int] = {"rot-mnist": 640}

# FPF and k-FPF: the paper's steps and thresholds; learning rates and τ from the middle of its grids.
REPAIR: Mapping[str, Values] = {
    "fpf": {"steps": Finetune().steps, "threshold": Finetune().threshold, "ft_lr": Finetune().lr},
    "k-fpf": {
        "steps": Finetune.k_fpf().steps,
        "threshold": Finetune.k_fpf().threshold,
        "ft_lr": Finetune.k_fpf().lr,
        "every": Finetune.k_fpf().every,
    },
}
# What did best on Seq-CIFAR-10 (docs/findings.md): often, of nearly all groups, with distillation. Elsewhere a start.
REPAIR_BY_METHOD: Mapping[str, Mapping[str, Values]] = {
    "masked": {"k-fpf": {"every": 100, "threshold": 0.1, "kd": 0.1}},
}
REPAIR_BY_STREAM: Mapping[str, Mapping[str, Values]] = {
    "seq-digits": {"fpf": {"ft_lr": 0.1}, "k-fpf": {"ft_lr": 0.05, "every": 50, "lr": 0.1}},
}

# The paper's search spaces (appendix). FPF: its learning rate; k-FPF: learning rates, and λ for the variant with KD.
GRIDS: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]] = {
    "seq-organamnist": {
        "fpf": {"ft_lr": (1, 0.3, 0.1, 0.03, 0.01)},
        "k-fpf": {"lr": (0.2, 0.15, 0.1, 0.075), "ft_lr": (0.5, 0.2, 0.15, 0.1), "kd": (1, 0.5, 0.2, 0.1)},
    },
    "seq-pathmnist": {
        "fpf": {"ft_lr": (1, 0.75, 0.3, 0.05, 0.03)},
        "k-fpf": {"lr": (0.05, 0.03, 0.01), "ft_lr": (0.1, 0.075, 0.05, 0.03, 0.01), "kd": (1, 0.5, 0.2, 0.1)},
    },
    "seq-cifar10": {
        "fpf": {"ft_lr": (1, 0.3, 0.1, 0.03, 0.01)},
        "k-fpf": {"lr": (0.05, 0.03, 0.01), "ft_lr": (0.075, 0.05, 0.03, 0.01), "kd": (0.5, 0.2, 0.1)},
    },
    "seq-tinyimagenet": {
        "fpf": {"ft_lr": (1, 0.5, 0.3, 0.075, 0.05)},
        "k-fpf": {"lr": (0.075, 0.05, 0.03), "ft_lr": (0.1, 0.075, 0.05), "kd": (1, 0.5, 0.2)},
    },
    "seq-pacs": {
        "fpf": {"ft_lr": (1, 0.5, 0.3, 0.05, 0.03, 0.005, 0.003)},
        "k-fpf": {"lr": (0.05, 0.03, 0.01), "ft_lr": (0.075, 0.05, 0.03, 0.0075), "kd": (1, 0.5, 0.2, 0.1)},
    },
}

# Chosen on the validation split (results/searches/): seq-mnist with buffer 500 (benchmarks/seq_mnist.py), rot-mnist and
# seq-tinyimagenet with 500, the others with 200 and 500 (benchmarks/columns.py).
# ``k-fpf-kd+sgd``: beside ``k-fpf+sgd`` where it distils.
SEARCHED: Mapping[str, Mapping[str, Values]] = {
    "seq-mnist": {
        "k-fpf+sgd": {"batch": 10, "lr": 0.1, "ft_lr": 0.1, "every": 100},
        "derpp": {"batch": 10, "lr": 0.03, "alpha": 1.0, "beta": 1.0, "replay": 10},
        "der": {"batch": 10, "lr": 0.03, "alpha": 2.0, "replay": 10},
        "er": {"batch": 10, "lr": 0.05, "replay": 32},
        "fdr": {"batch": 10, "lr": 0.03, "alpha": 3.0, "replay": 128},
        "icarl": {"batch": 10, "lr": 1.0, "replay": 10},
        "agem": {"batch": 10, "lr": 0.1, "replay": 128},
        "gdumb": {"batch": 10, "lr_high": 0.2, "cutmix": 0.5},
        "joint": {"batch": 10, "lr": 0.03},
        "sgd": {"batch": 10, "lr": 0.1},
        "oewc": {"batch": 10, "lr": 0.03, "penalty": 90.0, "gamma": 1.0},
        "fpf+er": {"batch": 10, "lr": 0.1, "replay": 32, "ft_lr": 0.3, "threshold": 0.5},
        "fpf+agem": {"batch": 10, "lr": 0.1, "replay": 128, "ft_lr": 0.3, "threshold": 0.5},
        "fpf+icarl": {"batch": 10, "lr": 0.3, "replay": 10, "ft_lr": 0.3, "threshold": 0.5},
        "fpf+fdr": {"batch": 10, "lr": 0.03, "alpha": 1.0, "replay": 128, "ft_lr": 0.01, "threshold": 0.5},
        "fpf+der": {"batch": 10, "lr": 0.03, "alpha": 1.0, "replay": 10, "ft_lr": 0.01, "threshold": 0.5},
        "fpf+derpp": {
            "batch": 10,
            "lr": 0.03,
            "alpha": 1.0,
            "beta": 1.0,
            "replay": 10,
            "ft_lr": 0.01,
            "threshold": 0.5,
        },
    },
    "rot-mnist": {
        "k-fpf+sgd": {"lr": 0.2, "ft_lr": 0.2, "every": 500},
        "k-fpf-kd+sgd": {"lr": 0.3, "ft_lr": 0.1, "every": 200, "kd": 0.5},
    },
    "seq-cifar10": {
        "k-fpf+sgd": {"lr": {200: 0.03, 500: 0.05}, "ft_lr": 0.05, "every": {200: 500, 500: 250}, "threshold": 0.1},
        "k-fpf-kd+sgd": {"lr": 0.03, "ft_lr": {200: 0.03, 500: 0.05}, "every": {200: 500, 500: 200}, "kd": 0.05},
        "k-fpf+masked": {"lr": 0.03, "ft_lr": 0.03, "every": {200: 50, 500: 100}, "kd": 0.2},
        "joint": {"lr": 0.03},
        "er": {"lr": {200: 0.03, 500: 0.1}},
        "agem": {"lr": {200: 0.01, 500: 0.03}},
        "fdr": {"lr": 0.03, "alpha": 1.0},
        "fpf+er": {"ft_lr": {200: 0.03, 500: 0.1}, "threshold": {200: 0.1, 500: 1.0}},
        "fpf+agem": {"ft_lr": {200: 0.01, 500: 0.1}, "threshold": 0.1},
        "fpf+icarl": {"ft_lr": {200: 0.03, 500: 0.1}, "threshold": {200: 0.1, 500: 1.0}},
        "fpf+fdr": {"ft_lr": 0.03, "threshold": 0.1},
        "fpf+der": {"ft_lr": {200: 0.03, 500: 0.1}},
        "fpf+derpp": {"ft_lr": 0.1},
    },
    "seq-organamnist": {
        "agem": {"lr": 0.1},
        "fdr": {"lr": {200: 0.03, 500: 0.1}, "alpha": {200: 1.0, 500: 3.0}},
        "derpp": {"lr": {200: 0.1, 500: 0.03}, "alpha": 0.2},
        "joint": {"lr": 0.01},
        "k-fpf+sgd": {"lr": {200: 0.03, 500: 0.1}, "ft_lr": 0.05, "every": 500, "threshold": 0.1},
        "k-fpf-kd+sgd": {"lr": 0.1, "ft_lr": {200: 0.15, 500: 0.1}, "kd": 0.2, "ft_pad": 2},
        "k-fpf+masked": {
            "lr": 0.03,
            "ft_lr": 0.05,
            "kd": 0.1,
            "every": {200: 50, 500: 100},
            "ft_pad": {200: 4, 500: 2},
        },
        "fpf+er": {"ft_lr": 0.1},
        "fpf+agem": {"ft_lr": 0.1, "threshold": 0.1},
        "fpf+icarl": {"ft_lr": 0.1},
        "fpf+fdr": {"lr": 0.1, "alpha": 3.0, "ft_lr": {200: 0.1, 500: 0.03}, "threshold": 0.1},
        "fpf+der": {"ft_lr": 0.03},
        "fpf+derpp": {"ft_lr": {200: 0.1, 500: 0.03}, "threshold": {200: 0.1, 500: 1.0}},
    },
    "seq-pathmnist": {
        "joint": {"lr": 0.01},
        "er": {"lr": 0.03},
        "k-fpf+sgd": {"lr": 0.03, "ft_lr": 0.05, "every": 500, "threshold": 0.1},
        "k-fpf-kd+sgd": {"kd": 0.1},
        "k-fpf+masked": {"lr": 0.03, "ft_lr": 0.03, "kd": 0.1},
        "fpf+er": {"ft_lr": 0.03, "threshold": 0.1},
        "fpf+derpp": {"ft_lr": 0.03, "threshold": 0.1},
    },
    "seq-pacs": {
        "derpp": {"alpha": 0.1},
        "k-fpf+sgd": {"lr": 0.05, "ft_lr": 0.03, "every": 100, "threshold": 0.1},
        "k-fpf-kd+sgd": {"kd": {200: 0.1, 500: 0.2}},
        "fpf+er": {"ft_lr": 0.03, "threshold": 0.1, "ft_pad": {200: 28, 500: 0}},
        "fpf+derpp": {"ft_lr": 0.03, "threshold": 0.1},
    },
    "seq-tinyimagenet": {
        "k-fpf+sgd": {"lr": 0.03, "ft_lr": 0.05, "every": 500, "threshold": 0.1},
        "k-fpf-kd+sgd": {"kd": 0.2},
        "k-fpf+masked": {"lr": 0.03, "ft_lr": 0.05, "every": 500, "kd": 0.2, "policy": "balanced"},
        "fpf+er": {"ft_lr": 0.3},
        "fpf+derpp": {"ft_lr": 0.1, "threshold": 0.1},
    },
}

# Searched for, with buffer 500, for a network that is not the stream's own. VGG-11 has no batch norm, and diverges with
# a ResNet's learning rates; iCaRL's is the second best, since with the best, 0.1, all final runs diverged.
SEARCHED_FOR: Mapping[tuple[str, str], Mapping[str, Values]] = {
    ("seq-cifar10", "vgg11"): {
        "k-fpf+sgd": {"lr": 0.01, "ft_lr": 0.01, "every": 500, "threshold": 0.1},
        "sgd": {"lr": 0.01},
        "joint": {"lr": 0.03},
        "oewc": {"lr": 0.01},
        "er": {"lr": 0.01},
        "agem": {"lr": 0.01},
        "icarl": {"lr": 0.03},
        "fdr": {"lr": 0.01, "alpha": 1.0},
        "der": {"lr": 0.01},
        "derpp": {"lr": 0.01},
        "fpf+er": {"ft_lr": 0.1, "threshold": 1.0},
        "fpf+agem": {"ft_lr": 0.03, "threshold": 0.1},
        "fpf+icarl": {"ft_lr": 0.03, "threshold": 1.0},
        "fpf+fdr": {"ft_lr": 0.03, "threshold": 1.0},
        "fpf+der": {"ft_lr": 0.03, "threshold": 0.1},
        "fpf+derpp": {"ft_lr": 0.03, "threshold": 1.0},
    },
}

# Of k-FPF with 50 epochs a task, likewise (benchmarks/records/many-epochs.json).
MANY_EPOCHS: Mapping[str, Values] = {"seq-cifar10": {"lr": 0.03, "ft_lr": 0.05, "every": 500}}


def preset(
    stream: str, method: str, repair: str, buffer: int, *, distils: bool = False, network: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Settings to start from for this run, each with where it comes from; the later of these wins.

    ``network``: if another than the stream's own is given.
    """
    found: dict[str, tuple[Any, str]] = {}

    def take(values: Values, source: str) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                size = min(value, key=lambda size: abs(size - buffer))
                found[name] = (value[size], f"{source}, buffer {size}")
            else:
                found[name] = (value, source)

    take(STREAM_DEFAULTS.get(stream, {}), f"default of {stream}")
    lender = stream if stream in DER_AUTHORS else BORROWED.get(stream, "")
    if method in DER_AUTHORS.get(lender, {}):
        take(DER_AUTHORS[lender][method], f"DER authors, {lender}")
    if stream in LARGE and method in AFFORDABLE:
        take(AFFORDABLE[method], "for its cost with a large network")
    if stream in CANDIDATES and method == "mir":
        take({"candidates": CANDIDATES[stream]}, "five times the replay")
    if repair != "none":
        take(REPAIR[repair], f"default of {repair}")
        take(REPAIR_BY_METHOD.get(method, {}).get(repair, {}), f"{repair} around {method}")
        take(REPAIR_BY_STREAM.get(stream, {}).get(repair, {}), f"{repair} on {stream}")
    row = {"none": "", "fpf": "fpf+", "k-fpf": "k-fpf+"}[repair] + method
    distilling = [row.replace("k-fpf+", "k-fpf-kd+")] if distils and repair == "k-fpf" else []
    for key in (method, row, *distilling):
        take(SEARCHED.get(stream, {}).get(key, {}), f"searched on validation, {key}")
    for key in (method, row, *distilling):
        take(
            SEARCHED_FOR.get((stream, network or ""), {}).get(key, {}), f"searched on validation, {key} with {network}"
        )
    return found
