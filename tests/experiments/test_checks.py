"""Runs that cannot start are reported before the first one does."""

import pytest

from forgetless.experiments.checks import check_runs
from forgetless.experiments.jobs import Planned
from forgetless.experiments.settings import resolve


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path / "data"))


def planned(stream, method, **given):
    return Planned(*resolve(stream, method, given))


def test_runs_that_can_start_pass(tmp_path):
    check_runs([planned("seq-digits", "er"), planned("seq-digits", "derpp", alpha=0.2)], tmp_path)


def test_one_error_counts_the_runs_of_each_problem(tmp_path):
    runs = [planned("seq-mnist", "er", seed=seed) for seed in range(3)]
    runs += [planned("seq-digits", "er"), planned("seq-digits", "nowhere:Method")]
    with pytest.raises(ValueError, match="cannot start") as raised:
        check_runs(runs, tmp_path)
    first, second = str(raised.value).split("; ")
    assert first.startswith("3 of 5 runs cannot start: seq-mnist needs the data set mnist, which is not in ")
    assert second == "1 of 5 runs cannot start: method 'nowhere:Method': no module named 'nowhere'"


def test_a_missing_gpu_is_reported(tmp_path):
    with pytest.raises(ValueError, match="1 of 1 runs cannot start: device is 'cuda:99', but torch sees . GPUs here"):
        check_runs([planned("seq-digits", "er", device="cuda:99")], tmp_path)


def test_finished_runs_need_nothing(records, tmp_path):
    run = planned("seq-mnist", "er")
    folder = tmp_path / run.settings.id
    folder.mkdir()
    (folder / "record.json").touch()
    check_runs([run], tmp_path)
    with pytest.raises(ValueError, match="1 of 1 runs cannot start"):
        check_runs([run], None)
