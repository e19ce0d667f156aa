"""What the process has imported from which commands are forked: see ``helpers.command``."""

import os

os.environ["COLUMNS"] = "160"  # rich looks once

import forgetless.build
import forgetless.cli
import forgetless.methods
import forgetless.sweep
import forgetless.training

__all__ = ["forgetless"]
