"""What holds for the package as a whole: layers, exports, imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forgetless

SOURCE = Path(forgetless.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"

# The layers in order, as the table of docs/architecture.md lists them: a module imports from its own folder or from
# those before it.
LAYERS = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE.read_text(), re.MULTILINE)


def layer(module):
    return LAYERS.index(module)


def imported(file):
    """First parts, below forgetless, of what a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "forgetless":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forgetless."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("forgetless."))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.name}: relative import"


def test_imports_go_downward():
    for file in SOURCE.rglob("*.py"):
        module = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if module in ("__init__", "__main__"):
            continue
        for other in imported(file):
            assert layer(other) <= layer(module), f"{module} imports {other}, which is above it"


def test_every_folder_is_a_layer():
    folders = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert folders - {"__init__", "__main__"} == set(LAYERS)


def test_the_concept_table_names_existing_files():
    table = ARCHITECTURE.read_text().partition("## Concepts")[2].partition("##")[0]
    files = re.findall(r"`([\w/]+\.py)`", table)
    assert len(files) >= 30
    for file in files:
        assert (SOURCE / file).is_file(), file


def test_no_file_or_class_is_too_long():
    for file in SOURCE.rglob("*.py"):
        text = file.read_text()
        assert len(text.splitlines()) <= 350, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno < 250, f"{file}: {node.name}"


def test_exports_are_these():
    assert forgetless.__all__ == [
        "FPF", "METHODS", "NETWORKS", "STREAMS", "Buffer", "Finetune", "Finetuned", "Method", "NonFiniteError",
        "Profile", "ShardedState", "Stream", "check", "evaluate", "finetune", "groups", "networks", "only", "repair",
        "select", "sensitivity", "train",
    ]  # fmt: skip
    assert all(getattr(forgetless, name) is not None for name in forgetless.__all__)
    assert set(forgetless.__all__) <= set(dir(forgetless))


def test_importing_needs_no_extra():
    assert not {"matplotlib", "sklearn", "scipy", "pooch", "PIL", "torch._dynamo"} & modules_after(
        "from forgetless import FPF, train"
    )


@pytest.mark.parametrize("command", ["--help", "list", "run --help", "repair --help", "data list", "data --help"])
def test_the_command_line_starts_without_torch(command):
    code = f"""
import sys
sys.argv = ["forgetless", *{command.split()!r}]
from forgetless.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert "torch" not in modules_after(code)


@pytest.mark.parametrize(
    "module",
    [
        "experiments.record",
        "experiments.sweep",
        "experiments.ray",
        "reports.rows",
        "reports.page",
        "reports.charts",
        "paper.published",
        "paper.studies",
        "config.catalogue",
    ],
)
def test_what_reads_records_imports_no_torch(module):
    assert "torch" not in modules_after(f"import forgetless.{module}")


def modules_after(code):
    code += "\nimport sys; print('MODULES', *sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(output.stdout.rpartition("MODULES")[2].split())


def test_a_run_imports_neither_compiler_nor_scikit_learn():
    code = (
        "import sys\nfrom forgetless.experiments.run import run\n"
        "from forgetless.experiments.settings import resolve\n"
        "made = run(resolve("
        "'seq-digits', 'er', {'repair': 'fpf', 'epochs': 1, 'steps': 2})[0])\n"
        "print(made.flops['train'] > 0, [name for name in ('torch._dynamo', 'sklearn') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "True []\n"  # each takes seconds
