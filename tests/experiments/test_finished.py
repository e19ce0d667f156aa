"""A result is never that of other code than the user's present code."""

import json
import sys

import pytest

from forgetless.experiments import checkpoint, record
from forgetless.experiments.checkpoint import Stop, Stopped
from forgetless.experiments.finished import find_current, set_aside
from forgetless.experiments.jobs import Planned, RunDone, RunFailed
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import error_path, sweep
from forgetless.training.events import Began

METHOD = """
from forgetless.methods import Method
from forgetless.methods.sgd import SGD
class Mine(Method):
    def step(self, learner, batch):
        return SGD().step(learner, batch)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes the user's file and lets it be imported again, as a new process does."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (tmp_path / "changing.py").write_text(text)
        sys.modules.pop("changing", None)

    write(METHOD)
    yield write
    sys.modules.pop("changing", None)


def settings_of(method="changing:Mine"):
    return resolve("seq-digits", method, {"epochs": 1, "batch": 50})[0]


def interrupt(settings, out):
    """Start a run and stop it at its first event, so that it leaves a checkpoint."""
    stop = Stop()

    def request(event):
        stop.since = 1.0

    with pytest.raises(Stopped):
        run(settings, out=out, on_event=request, stop=stop)


def test_a_record_holds_a_checksum_of_user_code(module, tmp_path):
    settings = settings_of()
    finished = run(settings, out=tmp_path / "runs")
    assert list(finished.code) == ["changing:Mine"]
    assert record.read_run(tmp_path / "runs", settings) == finished
    assert run(settings_of("sgd")).code == {}


def test_a_run_is_repeated_when_its_code_changed(module, tmp_path):
    out, settings = tmp_path / "runs", settings_of()
    first = run(settings, out=out)
    module(METHOD)
    assert run(settings, out=out).seconds == first.seconds  # the same text: it was not trained again
    module(METHOD + "# changed\n")
    with pytest.warns(UserWarning, match="^changing:Mine changed since the record was made: the run is repeated$"):
        second = run(settings, out=out)
    assert second.code != first.code
    assert second.id == first.id
    assert record.read(out / first.id / "record.old.json") == first
    assert find_current(out, settings) == second


def test_runs_in_lanes_are_repeated_when_their_code_changed(module, tmp_path):
    settings = settings_of()
    ((_, first),) = run_lanes([settings], 1, tmp_path)
    module(METHOD + "# changed\n")
    with pytest.warns(UserWarning, match="changing:Mine changed since"):
        ((_, second),) = run_lanes([settings], 1, tmp_path)
    assert second.code != first.code


def test_the_code_of_a_record_is_that_of_its_start(module, tmp_path):
    settings = settings_of()

    def edit(event):
        if isinstance(event, Began):
            module(METHOD + "# edited while the run trains\n")

    run(settings, out=tmp_path / "runs", on_event=edit)
    with pytest.warns(UserWarning, match="changing:Mine changed since"):
        assert find_current(tmp_path / "runs", settings) is None


def test_a_checkpoint_of_changed_code_is_not_resumed(module, tmp_path):
    settings, began = settings_of(), []
    interrupt(settings, tmp_path)
    assert checkpoint.path(tmp_path, settings).exists()
    module(METHOD + "# changed\n")
    with pytest.warns(UserWarning, match="changing:Mine changed since the checkpoint was written: the run starts"):
        run(settings, out=tmp_path, on_event=began.append)
    assert (began[0].task, began[0].step) == (1, 0)


def test_a_checkpoint_of_the_same_code_is_resumed(module, tmp_path):
    settings, events = settings_of(), []
    interrupt(settings, tmp_path)
    run(settings, out=tmp_path, on_event=events.append)
    assert isinstance(events[0], Began)
    assert events[0].step > 0


def test_a_failure_of_changed_code_is_repeated(module, tmp_path, monkeypatch):
    settings = settings_of()
    error_path(tmp_path, settings).parent.mkdir()
    failure = {"error": "it broke", "code": {"changing:Mine": "00000000"}}
    error_path(tmp_path, settings).write_text(json.dumps(failure))
    monkeypatch.setattr("forgetless.experiments.workers.execute", lambda runs, out, execution: iter(()))
    assert list(sweep([Planned(settings, {})], tmp_path)) == []  # it would be executed
    error_path(tmp_path, settings).write_text(json.dumps({"error": "it broke"}))
    assert list(sweep([Planned(settings, {})], tmp_path)) == [RunFailed(settings, "it broke", earlier=True)]


def test_a_record_without_checksums_or_code_counts(records, tmp_path):
    settings = resolve(records[0].settings["stream"], "sgd", {"epochs": 2, "batch": 50, "replay": 50})[0]
    record.write(records[0], record.path(tmp_path, settings))
    values = json.loads(record.path(tmp_path, settings).read_text())
    del values["code"]  # as in a record of an older version
    record.path(tmp_path, settings).write_text(json.dumps(values))
    assert list(sweep([Planned(settings, {})], tmp_path)) == [RunDone(settings, earlier=True)]


def test_a_missing_module_leaves_the_record_valid(module, tmp_path):
    settings = settings_of()
    finished = run(settings, out=tmp_path / "runs")
    (tmp_path / "changing.py").unlink()
    sys.modules.pop("changing")
    assert find_current(tmp_path / "runs", settings) == finished


def test_a_record_is_set_aside(module, tmp_path):
    settings = settings_of("sgd")
    set_aside(tmp_path, settings)  # there is none
    finished = run(settings, out=tmp_path)
    set_aside(tmp_path, settings)
    assert find_current(tmp_path, settings) is None
    assert record.read(tmp_path / settings.id / "record.old.json") == finished
