"""What forgets, and how it is repaired. Imports torch only when ``Repairer`` is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forgetless.repair.repairer import Repairer

__all__ = ["Repairer"]


def __getattr__(name: str) -> Any:
    if name != "Repairer":
        raise AttributeError(f"module 'forgetless.repair' has no attribute {name!r}")
    from forgetless.repair.repairer import Repairer

    return Repairer
