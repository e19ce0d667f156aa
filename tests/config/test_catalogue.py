from dataclasses import fields

import pytest

from forgetless.config import catalogue
from forgetless.methods import Method


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in catalogue.TABLES.items() for name in table])
def test_every_entry_leads_to_something(kind, name):
    found = catalogue.load(kind, name)
    assert callable(found)
    if kind == "method":
        assert issubclass(found, Method)


def test_the_tables_cannot_be_changed():
    with pytest.raises(TypeError):
        catalogue.METHODS["mine"] = None


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no stream named 'seq-minst'; did you mean 'seq-mnist'"):
        catalogue.load("stream", "seq-minst")
    with pytest.raises(ValueError, match="no method named 'zzzz'; known: sgd, joint"):
        catalogue.load("method", "zzzz")


def test_a_dotted_path_goes_wherever_a_name_does(tmp_path, monkeypatch):
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
def test_the_settings_of_a_method_are_those_it_has(name):
    kind = catalogue.load("method", name)
    assert catalogue.METHOD_SETTINGS[name] == tuple(f.name for f in fields(kind) if f.init)


def test_what_is_wrong_with_a_users_module_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unfinished_file.py").write_text("def made(:\n")
    with pytest.raises(ValueError, match=r"'unfinished_file:made': invalid syntax in line 1 of .*unfinished_file"):
        catalogue.load("stream", "unfinished_file:made")
    (tmp_path / "missing_thing_streams.py").write_text("import missing_thing\n")
    with pytest.raises(ImportError, match="missing_thing_streams cannot be imported: No module named 'missing_thing'"):
        catalogue.load("stream", "missing_thing_streams:made")
