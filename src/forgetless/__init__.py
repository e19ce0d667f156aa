"""Find which parts of a network forget when its data shifts, and repair only those.

Zhao, Zhou, Long, Jiang & Zhang, "Does Continual Learning Equally Forget All Parameters?", ICML 2023.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.20.0"

if TYPE_CHECKING:
    from forgetless import networks
    from forgetless.config.catalogue import METHODS, NETWORKS, STREAMS
    from forgetless.data.stream import Stream
    from forgetless.fpf import FPF
    from forgetless.methods import Method
    from forgetless.repair.buffer import Buffer
    from forgetless.repair.finetune import Finetuned, NonFiniteError, finetune
    from forgetless.repair.freezing import only
    from forgetless.repair.groups import groups
    from forgetless.repair.profile import Profile
    from forgetless.repair.sensitivity import select, sensitivity
    from forgetless.repair.settings import Finetune
    from forgetless.training.contract import check
    from forgetless.training.evaluation import evaluate
    from forgetless.training.loop import train

# Where each name is; imported when it is first used, so that the command line starts without torch.
_HOMES = {
    "FPF": "forgetless.fpf",
    "METHODS": "forgetless.config.catalogue",
    "NETWORKS": "forgetless.config.catalogue",
    "STREAMS": "forgetless.config.catalogue",
    "Buffer": "forgetless.repair.buffer",
    "Finetune": "forgetless.repair.settings",
    "Finetuned": "forgetless.repair.finetune",
    "Method": "forgetless.methods",
    "NonFiniteError": "forgetless.repair.finetune",
    "Profile": "forgetless.repair.profile",
    "Stream": "forgetless.data.stream",
    "check": "forgetless.training.contract",
    "evaluate": "forgetless.training.evaluation",
    "finetune": "forgetless.repair.finetune",
    "groups": "forgetless.repair.groups",
    "networks": "forgetless",
    "only": "forgetless.repair.freezing",
    "select": "forgetless.repair.sensitivity",
    "sensitivity": "forgetless.repair.sensitivity",
    "train": "forgetless.training.loop",
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
