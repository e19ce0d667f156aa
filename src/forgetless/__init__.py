"""Find which parts of a network forget when its data shifts, and repair only those.

Zhao, Zhou, Long, Jiang & Zhang, "Does Continual Learning Equally Forget All Parameters?", ICML 2023.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.21.0"

if TYPE_CHECKING:
    from forgetless import networks
    from forgetless.config.catalogue import METHODS, NETWORKS, STREAMS
    from forgetless.data.stream import Stream
    from forgetless.fpf import FPF
    from forgetless.memory.buffer import Buffer
    from forgetless.methods import Method
    from forgetless.repair.finetune import finetune
    from forgetless.repair.finetuning import Finetuned
    from forgetless.repair.finished import repair
    from forgetless.repair.freezing import only
    from forgetless.repair.groups import groups
    from forgetless.repair.non_finite import NonFiniteError
    from forgetless.repair.profile import Profile
    from forgetless.repair.sensitivity import select, sensitivity
    from forgetless.repair.settings import Finetune
    from forgetless.repair.sharded_state import ShardedState
    from forgetless.training.contract import check
    from forgetless.training.evaluation import evaluate
    from forgetless.training.loop import train

__all__ = [
    "FPF", "METHODS", "NETWORKS", "STREAMS", "Buffer", "Finetune", "Finetuned", "Method", "NonFiniteError", "Profile",
    "ShardedState", "Stream", "check", "evaluate", "finetune", "groups", "networks", "only", "repair", "select",
    "sensitivity", "train",
]  # fmt: skip

# Where the names are; imported when they are first used, so that the command line starts without torch.
_HOMES = {
    "config.catalogue": ("METHODS", "NETWORKS", "STREAMS"), "data.stream": ("Stream",), "fpf": ("FPF",),
    "methods": ("Method",), "networks": ("networks",), "repair": ("repair",), "memory.buffer": ("Buffer",),
    "repair.finetune": ("finetune",), "repair.finetuning": ("Finetuned",), "repair.freezing": ("only",),
    "repair.groups": ("groups",), "repair.non_finite": ("NonFiniteError",),
    "repair.profile": ("Profile",), "repair.sensitivity": ("select", "sensitivity"), "repair.settings": ("Finetune",),
    "repair.sharded_state": ("ShardedState",),
    "training.contract": ("check",), "training.evaluation": ("evaluate",), "training.loop": ("train",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            module = import_module(f"forgetless.{home}")
            return getattr(module, name, module)  # ``networks`` and ``repair`` are modules
    raise AttributeError(f"module 'forgetless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
