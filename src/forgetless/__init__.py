"""Find which parts of a network forget when its data shifts, and repair only those.

Zhao, Zhou, Long, Jiang & Zhang, "Does Continual Learning Equally Forget All Parameters?", ICML 2023.
"""

from forgetless import networks
from forgetless.buffer import Buffer
from forgetless.dynamics import select, sensitivity
from forgetless.finetuning import Finetuned, NonFiniteError, finetune, only
from forgetless.fpf import FPF
from forgetless.grouping import groups
from forgetless.profile import Profile

__version__ = "0.1.0"

__all__ = [
    "FPF",
    "Buffer",
    "Finetuned",
    "NonFiniteError",
    "Profile",
    "finetune",
    "groups",
    "networks",
    "only",
    "select",
    "sensitivity",
]
