"""Find which parts of a network forget when its data shifts, and repair only those.

Zhao, Zhou, Long, Jiang & Zhang, "Does Continual Learning Equally Forget All Parameters?", ICML 2023.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.21.0"

if TYPE_CHECKING:
    from forgetless import networks as networks
    from forgetless.config.catalogue import METHODS as METHODS
    from forgetless.config.catalogue import NETWORKS as NETWORKS
    from forgetless.config.catalogue import STREAMS as STREAMS
    from forgetless.data.stream import Stream as Stream
    from forgetless.fpf import FPF as FPF
    from forgetless.methods import Method as Method
    from forgetless.repair.buffer import Buffer as Buffer
    from forgetless.repair.finetune import Finetuned as Finetuned
    from forgetless.repair.finetune import NonFiniteError as NonFiniteError
    from forgetless.repair.finetune import finetune as finetune
    from forgetless.repair.finished import repair as repair
    from forgetless.repair.freezing import only as only
    from forgetless.repair.groups import groups as groups
    from forgetless.repair.profile import Profile as Profile
    from forgetless.repair.sensitivity import select as select
    from forgetless.repair.sensitivity import sensitivity as sensitivity
    from forgetless.repair.settings import Finetune as Finetune
    from forgetless.training.contract import check as check
    from forgetless.training.evaluation import evaluate as evaluate
    from forgetless.training.loop import train as train


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
    "networks": "forgetless.networks",
    "only": "forgetless.repair.freezing",
    "repair": "forgetless.repair",
    "select": "forgetless.repair.sensitivity",
    "sensitivity": "forgetless.repair.sensitivity",
    "train": "forgetless.training.loop",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forgetless' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    return getattr(module, name, module)  # ``networks`` and ``repair`` are modules


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
