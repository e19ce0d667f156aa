"""The command line."""

from forgetless.cli.app import main

__all__ = ["main"]
