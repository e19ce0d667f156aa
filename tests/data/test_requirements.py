"""What a stream needs on a machine is known before it is read."""

import pytest

from forgetless.config.catalogue import STREAMS
from forgetless.data import requirements
from forgetless.data.download import SOURCES
from forgetless.data.requirements import DATA_SETS, missing


def test_every_stream_but_the_digits_has_a_data_set():
    assert {*DATA_SETS, "seq-digits", "view-digits"} == set(STREAMS)
    assert set(DATA_SETS.values()) == set(SOURCES)


def test_a_missing_data_set_is_named_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path))
    said = missing("rot-mnist")
    assert said.startswith(
        f"rot-mnist needs the data set mnist, which is not in {tmp_path}: run `forgetless data get mnist`"
    )
    assert "request it from its authors" in missing("seq-pacs")


@pytest.mark.parametrize("ending", [".gz", ""])
def test_files_that_are_present_are_enough(ending, tmp_path, monkeypatch):
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for path in SOURCES["mnist"].contents:
        (tmp_path / path).with_suffix(ending).touch()
    assert missing("seq-mnist") == ""


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    assert missing("seq-digits") == "seq-digits needs scikit-learn: pip install 'forgetless[digits]'"


def test_a_user_stream_needs_nothing():
    assert missing("mine:stream") == ""
