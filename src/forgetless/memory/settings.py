"""The settings of a buffer. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from forgetless.config.catalogue import POLICIES
from forgetless.config.fields import SEED, Checked, setting


@dataclass(frozen=True, kw_only=True)
class Memory(Checked):
    """What a buffer holds."""

    capacity: int = setting(500, "Examples the buffer holds.", least=1)
    policy: str = setting(
        "reservoir",
        "How the buffer samples: reservoir (uniform), balanced (equal per class) or distinct (no repeats).",
        choices=POLICIES,
    )
    seed: int = setting(0, "Seed of the buffer and of the draws from it.", **SEED)
