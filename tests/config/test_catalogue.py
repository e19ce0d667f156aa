import importlib
import sys

import pytest

from forgetless.config import catalogue
from forgetless.config.fields import settings_of
from forgetless.methods import Method


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in catalogue.TABLES.items() for name in table])
def test_every_entry_can_be_loaded(kind, name):
    found = catalogue.load(kind, name)
    assert callable(found)
    if kind == "method":
        assert issubclass(found, Method)


def test_the_tables_cannot_be_changed():
    with pytest.raises(TypeError):
        catalogue.METHODS["mine"] = None


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="no stream named 'seq-minst'; did you mean 'seq-mnist'"):
        catalogue.load("stream", "seq-minst")
    with pytest.raises(ValueError, match="no method named 'zzzz'; known: sgd, joint"):
        catalogue.load("method", "zzzz")


def test_a_path_is_valid_wherever_a_name_is(tmp_path, monkeypatch):
    (tmp_path / "mine_for_test.py").write_text("def network(classes): return classes\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert catalogue.load("network", "mine_for_test:network")(3) == 3
    assert catalogue.load("network", "mine_for_test.network")(3) == 3
    with pytest.raises(ValueError, match="mine_for_test has no 'netwerk'; did you mean 'network'"):
        catalogue.load("network", "mine_for_test:netwerk")
    with pytest.raises(ValueError, match="no module named 'nowhere.at_all'"):
        catalogue.load("network", "nowhere.at_all:thing")


@pytest.mark.parametrize("name", catalogue.METHODS)
def test_every_setting_of_a_method_has_help(name):
    assert all(declared.help for declared in settings_of(catalogue.load("method", name)).values())


def test_modules_of_the_working_directory_are_found_once_asked(tmp_path, monkeypatch):
    (tmp_path / "module_beside_command.py").write_text("stream = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ValueError, match="no module named 'module_beside_command'"):
        catalogue.load("stream", "module_beside_command:stream")
    importlib.invalidate_caches()
    catalogue.find_modules_here()
    assert catalogue.load("stream", "module_beside_command:stream") == 3


def test_an_error_in_a_users_module_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unfinished_file.py").write_text("def made(:\n")
    with pytest.raises(ValueError, match=r"'unfinished_file:made': invalid syntax in line 1 of .*unfinished_file"):
        catalogue.load("stream", "unfinished_file:made")
    (tmp_path / "missing_thing_streams.py").write_text("import missing_thing\n")
    with pytest.raises(ImportError, match="missing_thing_streams cannot be imported: No module named 'missing_thing'"):
        catalogue.load("stream", "missing_thing_streams:made")
