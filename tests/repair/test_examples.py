import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "fpf",
        "memory.buffer",
        "repair.finetune",
        "repair.freezing",
        "repair.groups",
        "repair.profile",
        "repair.sensitivity",
    ],
)
def test_examples_in_docstrings_run(module):
    failed, attempted = doctest.testmod(import_module(f"forgetless.{module}"))
    assert attempted
    assert not failed
