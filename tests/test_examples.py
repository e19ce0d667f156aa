import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    for file in SOURCE.rglob("*.py")
    if ">>>" in file.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    failed, attempted = doctest.testmod(import_module(module))
    assert attempted
    assert not failed
