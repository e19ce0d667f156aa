"""Presets: the settings a run starts from, as data, and the paper's search grids. Imports no torch.

They come from the streams, from the DER authors (Buzzega et al. 2020) and from searches on the validation split. A
value that depends on the buffer size is ``{200: …, 500: …}``; the nearest size is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgetless.repair.settings import Finetune

Values = Mapping[str, Any]
FPF, K_FPF = Finetune(), Finetune.k_fpf()

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
            "lr": 0.03, "replay": {200: 128, 500: 10}, "alpha": {200: 0.2, 500: 1.0}, "beta": {200: 1.0, 500: 0.5},
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
}  # fmt: skip

# A stream that the DER authors do not have borrows the settings of the most similar one they have.
BORROWED = {"seq-organamnist": "seq-cifar10", "seq-pathmnist": "seq-cifar10", "seq-pacs": "seq-tinyimagenet"}

# Per-example gradients of a large network over all images of a task would take longer than its training.
LARGE = ("seq-organamnist", "seq-pathmnist", "seq-cifar10", "seq-tinyimagenet", "seq-pacs")
AFFORDABLE: Mapping[str, Values] = {"oewc": {"fisher_examples": 500}, "mas": {"examples": 500}}

# MIR draws candidates at five times the replay, as in its paper. Its default of 50 suits a replay of 10, not of 128.
CANDIDATES: Mapping[str, int] = {"rot-mnist": 640}

# FPF and k-FPF: the defaults of Finetune.
REPAIR: Mapping[str, Values] = {
    "fpf": {"steps": FPF.steps, "threshold": FPF.threshold, "ft_lr": FPF.lr},
    "k-fpf": {"steps": K_FPF.steps, "threshold": K_FPF.threshold, "ft_lr": K_FPF.lr, "every": K_FPF.every},
}
# The best on Seq-CIFAR-10 (docs/findings.md): frequent repairs of nearly all groups, with distillation.
REPAIR_BY_METHOD: Mapping[str, Mapping[str, Values]] = {
    "masked": {"k-fpf": {"every": 100, "threshold": 0.1, "kd": 0.1}},
}
REPAIR_BY_STREAM: Mapping[str, Mapping[str, Values]] = {
    "seq-digits": {"fpf": {"ft_lr": 0.1}, "k-fpf": {"ft_lr": 0.05, "every": 50, "lr": 0.1}},
}

# The paper's search grids (appendix). FPF: its learning rate. k-FPF: both learning rates, and λ for k-FPF-KD.
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

# Chosen on the validation split (results/searches/). Seq-MNIST with buffer 500: benchmarks/seq_mnist.py. Rot-MNIST and
# Seq-Tiny-ImageNet with 500, the others with 200 and 500: benchmarks/columns.py. A run that distils takes the row
# ``k-fpf-kd+sgd`` after ``k-fpf+sgd``.
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
            "batch": 10, "lr": 0.03, "alpha": 1.0, "beta": 1.0, "replay": 10, "ft_lr": 0.01, "threshold": 0.5,
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
            "lr": 0.03, "ft_lr": 0.05, "kd": 0.1, "every": {200: 50, 500: 100}, "ft_pad": {200: 4, 500: 2},
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
}  # fmt: skip

# Chosen with buffer 500 for a network that is not the stream's default. VGG-11 has no batch norm and diverges with the
# learning rates of a ResNet. iCaRL has its second-best rate, because all final runs diverged with the best, 0.1.
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

# k-FPF with 50 epochs per task (benchmarks/records/many-epochs.json).
MANY_EPOCHS: Mapping[str, Values] = {"seq-cifar10": {"lr": 0.03, "ft_lr": 0.05, "every": 500}}


def preset(
    stream: str, method: str, repair: str, buffer: int, *, distils: bool = False, network: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Return the presets of a run by name, each as (value, source). Later sources override earlier ones.

    Args:
        stream: The stream's name; a user's stream has no presets of its own.
        method: The method's name.
        repair: ``"none"``, ``"fpf"`` or ``"k-fpf"``.
        buffer: The size of the buffer, on which some values depend.
        distils: Whether the repair distils, which has presets of its own.
        network: The network, if it is not the stream's default.
    """
    chosen: dict[str, tuple[Any, str]] = {}

    def take(values: Values, source: str) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                size = min(value, key=lambda size: abs(size - buffer))
                chosen[name] = (value[size], f"{source}, buffer {size}")
            else:
                chosen[name] = (value, source)

    take(STREAM_DEFAULTS.get(stream, {}), f"default of {stream}")
    lender = stream if stream in DER_AUTHORS else BORROWED.get(stream, "")
    take(DER_AUTHORS.get(lender, {}).get(method, {}), f"DER authors, {lender}")
    if stream in LARGE:
        take(AFFORDABLE.get(method, {}), "for its cost with a large network")
    if stream in CANDIDATES and method == "mir":
        take({"candidates": CANDIDATES[stream]}, "five times the replay")
    row = method
    if repair != "none":
        take(REPAIR[repair], f"default of {repair}")
        take(REPAIR_BY_METHOD.get(method, {}).get(repair, {}), f"{repair} around {method}")
        take(REPAIR_BY_STREAM.get(stream, {}).get(repair, {}), f"{repair} on {stream}")
        row = f"{repair}+{method}"
    rows = [method, row, f"k-fpf-kd+{method}"] if distils and repair == "k-fpf" else [method, row]
    for key in rows:
        take(SEARCHED.get(stream, {}).get(key, {}), f"searched on validation, {key}")
    for key in rows:
        searched = SEARCHED_FOR.get((stream, network or ""), {}).get(key, {})
        take(searched, f"searched on validation, {key} with {network}")
    return chosen
