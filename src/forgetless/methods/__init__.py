"""The compared methods: one per file, with a step that is readable in one place. FPF works with any of them."""

from forgetless.config.fields import setting
from forgetless.methods.method import Method

__all__ = ["Method", "setting"]
