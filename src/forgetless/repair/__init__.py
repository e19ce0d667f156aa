"""What forgets and how it is repaired. The package is also a function: ``forgetless.repair(model, examples)``.

The function is ``forgetless.repair.finished.repair``. It is imported when it is called, because it imports torch.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """A package that can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from forgetless.repair.finished import repair

        return repair(*arguments, **named)


sys.modules[__name__].__class__ = _CallableModule
