"""Sweeps skip finished runs and record failed ones; disks that fill up and losses that diverge."""

import errno
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress

import pytest

from forgetless import NonFiniteError, networks, train
from forgetless.data.benchmarks import seq_digits
from forgetless.experiments import record
from forgetless.experiments.checkpoint import load
from forgetless.experiments.checkpoint import path as checkpoint_path
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import RunDone, RunFailed
from forgetless.experiments.pack import run_lanes
from forgetless.experiments.plan import expand_plan
from forgetless.experiments.run import run as run_settings
from forgetless.experiments.storage import Schedule
from forgetless.experiments.sweep import error_path, sweep
from forgetless.methods.er import ER
from forgetless.training.events import Stepped
from helpers import lasting

QUICK = {"stream": "seq-digits", "epochs": 1, "batch": 50, "replay": 50}
OFTEN = Schedule(steps=20, seconds=None)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two runs of ER and one that diverges, in two processes: the runs, their events, and the folder."""
    out = tmp_path_factory.mktemp("swept")
    runs = expand_plan(QUICK | {"method": "er", "runs": [{"seeds": 2}, {"lr": 1e20}]})
    events = {event.settings.id: event for event in sweep(runs, out, Execution(workers=2))}
    return runs, events, out


def test_records_equal_those_of_single_runs(swept):
    runs, events, out = swept
    for run in runs[:2]:
        assert events[run.settings.id] == RunDone(run.settings, earlier=False)
        written = record.read(record.path(out, run.settings))
        assert lasting(written) == lasting(run_settings(run.settings, run.sources))


def test_a_failed_run_is_recorded(swept):
    runs, events, out = swept
    failed = events[runs[2].settings.id]
    assert isinstance(failed, RunFailed)
    assert "NonFiniteError: the loss became" in failed.error
    written = json.loads(error_path(out, runs[2].settings).read_text())
    assert written["settings"]["lr"] == 1e20
    assert "Traceback" in written["trace"]


def test_finished_and_failed_runs_are_skipped(swept):
    runs, _, out = swept
    events = list(sweep(runs, out))
    assert all(event.earlier for event in events)
    assert [type(event) for event in events] == [RunDone, RunDone, RunFailed]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"workers": 0}, "workers is 0; it must be a whole number of 1 or more"),
        ({"on": "slurm"}, "on is 'slurm'; it must be one of here, ray"),
    ],
)
def test_invalid_execution_is_refused(values, match):
    with pytest.raises(ValueError, match=match):
        Execution(**values)


def test_a_corrupt_record_is_named_and_kept(swept):
    runs, _, out = swept
    file = record.path(out, runs[0].settings)
    content = file.read_text()
    file.write_text('{"id": ')
    corrupt, finished = sweep(runs[:2], out)
    assert isinstance(corrupt, RunFailed)
    assert re.search(r"record.json is not a record: .*; remove it to do the run again", corrupt.error)
    assert finished == RunDone(runs[1].settings, earlier=True)
    assert file.read_text() == '{"id": '
    file.write_text(content)


def test_a_missing_data_file_leaves_no_error_file(tmp_path, monkeypatch):
    """Once the data is there, the next call executes the run."""
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path / "nowhere"))
    runs = expand_plan({"stream": "seq-mnist", "method": "sgd"})
    _, failed = sweep(runs, tmp_path / "runs", Execution(workers=1))
    assert "DataError" in failed.error
    assert failed.lost
    assert not error_path(tmp_path / "runs", runs[0].settings).exists()


def test_an_unwritable_error_file_stops_no_other_run(tmp_path, monkeypatch):
    def full(values, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "write_json", full)
    runs = expand_plan(QUICK | {"method": "er", "lr": [1e20, 0.1]})
    events = {event.settings.lr: event for event in sweep(runs, tmp_path, Execution(workers=1))}
    assert "NonFiniteError" in events[1e20].error
    assert "error.json could not be written either: [Errno 28]" in events[1e20].error
    assert isinstance(events[0.1], RunDone)


def test_a_full_disk_is_the_error_of_its_run(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (run,) = expand_plan(QUICK | {"method": "er"})
    monkeypatch.setattr(os, "fsync", full)
    ((_, failed),) = run_lanes([run.settings], 1, tmp_path)
    assert "No space left on device" in str(failed.error)
    assert not list(tmp_path.rglob("*.*"))
    monkeypatch.undo()
    ((_, finished),) = run_lanes([run.settings], 1, tmp_path)
    assert record.read(record.path(tmp_path, run.settings)) == finished


def test_weights_that_are_not_finite_are_never_stored(tmp_path):
    (run,) = expand_plan({"stream": "seq-digits", "method": "sgd", "lr": 1e20})
    with pytest.raises(NonFiniteError, match=r"the loss became nan at step \d, in epoch 1 of task 1; try a smaller lr"):
        run_settings(run.settings, out=tmp_path, schedule=Schedule(steps=10, seconds=None))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_first_step_that_is_not_finite_is_named():
    method, steps = ER(), []

    def step(learner, batch, original=method.step):
        loss, columns = original(learner, batch)
        steps.append(loss)
        return (loss * float("nan") if len(steps) == 37 else loss), columns

    method.step = step
    network = networks.mlp(10, inputs=64)
    with pytest.raises(NonFiniteError, match="the loss became nan at step 37, in epoch 2 of task 1; try a smaller lr"):
        list(train(seq_digits(), method, network, epochs=3, batch=10, lr=0.01, buffer=100, capture=False))


@pytest.fixture
def small_disk(tmp_path):
    """Mount a real file system of three megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a checkpoint may still be mapped


def test_a_full_disk_stops_checkpoints_but_not_the_run(small_disk):
    (run,) = expand_plan({"stream": "seq-digits", "method": "er", "epochs": 3})
    ballast = small_disk / "ballast"
    room = 50_000  # for a record, but not for a checkpoint

    def fill(event):
        """Keep the disk full: a checkpoint that is being written now may replace an older one later."""
        if isinstance(event, Stepped) and event.step >= 200:
            with suppress(OSError), ballast.open("ab") as file:
                file.write(bytes(max(0, shutil.disk_usage(small_disk).free - room)))

    with pytest.warns(
        UserWarning, match=r"no checkpoint was written: .* could not be written: No space left on device"
    ):
        finished = run_settings(run.settings, run.sources, small_disk, fill, schedule=OFTEN)
    alone = run_settings(run.settings, run.sources)
    assert lasting(finished) == lasting(alone)
    shutil.rmtree(small_disk / run.settings.id)
    ballast.unlink()
    room = 1000  # not even for a record
    with (
        pytest.warns(UserWarning, match="no checkpoint"),
        pytest.raises(OSError, match="record.json could not be written: No space left"),
    ):
        run_settings(run.settings, run.sources, small_disk, fill, schedule=OFTEN)
    state, _ = load(checkpoint_path(small_disk, run.settings))
    assert 150 < state["place"][0] <= 200
    ballast.unlink()
    steps = []
    finished = run_settings(
        run.settings, run.sources, small_disk, lambda event: steps.append(getattr(event, "step", 10**9))
    )
    assert min(steps) > 150
    assert lasting(finished) == lasting(alone)
