"""Find which parts of a network forget when its data shifts, and repair only those.

Zhao, Zhou, Long, Jiang & Zhang, "Does Continual Learning Equally Forget All Parameters?", ICML 2023.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.19.0"

if TYPE_CHECKING:
    from forgetless import networks
    from forgetless.buffer import Buffer
    from forgetless.catalogue import METHODS, NETWORKS, STREAMS
    from forgetless.contract import check
    from forgetless.dynamics import select, sensitivity
    from forgetless.evaluation import evaluate
    from forgetless.finetuning import Finetune, Finetuned, NonFiniteError, finetune, only
    from forgetless.fpf import FPF
    from forgetless.grouping import groups
    from forgetless.methods import Method
    from forgetless.profile import Profile
    from forgetless.stream import Stream
    from forgetless.training import train

# Where each name is; imported when it is first used, so that the command line starts without torch.
_HOMES = {
    "FPF": "forgetless.fpf",
    "METHODS": "forgetless.catalogue",
    "NETWORKS": "forgetless.catalogue",
    "STREAMS": "forgetless.catalogue",
    "Buffer": "forgetless.buffer",
    "Finetune": "forgetless.finetuning",
    "Finetuned": "forgetless.finetuning",
    "Method": "forgetless.methods",
    "NonFiniteError": "forgetless.finetuning",
    "Profile": "forgetless.profile",
    "Stream": "forgetless.stream",
    "check": "forgetless.contract",
    "evaluate": "forgetless.evaluation",
    "finetune": "forgetless.finetuning",
    "groups": "forgetless.grouping",
    "networks": "forgetless",
    "only": "forgetless.finetuning",
    "select": "forgetless.dynamics",
    "sensitivity": "forgetless.dynamics",
    "train": "forgetless.training",
}

__all__ = [
    "FPF",
    "METHODS",
    "NETWORKS",
    "STREAMS",
    "Buffer",
    "Finetune",
    "Finetuned",
    "Method",
    "NonFiniteError",
    "Profile",
    "Stream",
    "check",
    "evaluate",
    "finetune",
    "groups",
    "networks",
    "only",
    "select",
    "sensitivity",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forgetless' has no attribute {name!r}")
    if name == "networks":
        return import_module("forgetless.networks")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
