"""What the paper compares: one method a file, its step readable in one place. FPF goes beside any of them."""

from forgetless.config.fields import setting
from forgetless.methods.method import Method

__all__ = ["Method", "setting"]
