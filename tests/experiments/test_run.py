import tempfile

import pytest

from forgetless.experiments import record
from forgetless.experiments.run import run
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.storage import Schedule
from forgetless.methods.si import SI
from helpers import lasting

QUICK = {"epochs": 1, "batch": 50, "replay": 50}


def test_a_run_with_a_record_is_not_trained_again(tmp_path):
    settings, sources = resolve("seq-digits", "sgd", QUICK)
    events = []
    first = run(settings, sources, tmp_path, events.append)
    seen = len(events)
    assert seen
    assert run(settings, sources, str(tmp_path), events.append) == first  # a path may be a text
    assert len(events) == seen
    assert record.path(tmp_path, settings).exists()


def test_the_same_settings_give_the_same_numbers():
    settings, _ = resolve("seq-digits", "derpp", {**QUICK, "repair": "fpf", "steps": 5})
    assert lasting(run(settings)) == lasting(run(settings))


def test_settings_without_presets_can_be_run():
    assert run(Settings(stream="seq-digits", method="sgd", batch=200)).settings["epochs"] == 1


def test_a_folder_that_cannot_be_written_fails_before_training(tmp_path):
    (tmp_path / "file").touch()
    events = []
    with pytest.raises(OSError, match="where nothing can be written"):
        run(resolve("seq-digits", "sgd", QUICK)[0], out=tmp_path / "file", on_event=events.append)
    assert not events


def test_a_state_that_is_not_plain_costs_only_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(SI, "state_dict", lambda self, learner: {"seen": {1, 2}})
    settings = resolve("seq-digits", "si", QUICK)[0]
    with pytest.warns(UserWarning, match="no checkpoints are written: a set cannot be kept in a checkpoint"):
        finished = run(settings, out=tmp_path, schedule=Schedule(steps=10, seconds=None))
    assert finished.accuracy == run(settings).accuracy


def test_a_method_that_learns_at_the_end_forgets_nothing():
    given = {"epochs": 1, "batch": 50, "memory_epochs": 4}
    plain, tested = (run(resolve("seq-digits", "gdumb", {**given, "anytime": on})[0]) for on in (False, True))
    assert (plain.forgetting, plain.backward_transfer, plain.forward_transfer) == (None, None, None)
    assert tested.accuracy == plain.accuracy
    assert tested.forgetting is not None
    assert tested.anytime[0] > plain.anytime[0]


def test_a_full_disk_moves_the_record_elsewhere(tmp_path, monkeypatch):
    settings = resolve("seq-digits", "sgd", {"epochs": 1, "batch": 100})[0]
    write, spare = record.write, tmp_path / "spare"
    monkeypatch.setattr(tempfile, "tempdir", str(spare))

    def full(finished, file):
        if not file.is_relative_to(spare):
            raise OSError(28, "No space left on device")
        write(finished, file)

    monkeypatch.setattr(record, "write", full)
    with pytest.raises(OSError, match=f"the record was saved as .*forgetless-{settings.id}.json: copy it there"):
        run(settings, out=tmp_path / "runs")
    assert record.read(spare / f"forgetless-{settings.id}.json").id == settings.id

    def nowhere(finished, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write", nowhere)  # the spare file is that of the run before
    with pytest.raises(OSError, match="No space left on device$"):
        run(settings, out=tmp_path / "runs")
