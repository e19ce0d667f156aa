import time

import pytest
import torch

from forgetless import NonFiniteError
from forgetless.experiments import checkpoint, record
from forgetless.experiments.build import build_run, build_stream
from forgetless.experiments.checkpoint import CheckpointedRun, Stop, Stopped
from forgetless.experiments.jobs import Planned, RunDone, RunFailed, run_job
from forgetless.experiments.pack import _Pack, run_lanes
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from forgetless.experiments.storage import Schedule
from forgetless.training import loop
from forgetless.training.events import Repaired, TaskEnded, Trained
from helpers import lasting

QUICK = {"epochs": 1, "batch": 50, "replay": 50}
OVERFLOWS = 1e300  # a learning rate with which a repair fails after the training
RATES = [{"ft_lr": 0.1}, {"ft_lr": 0.2}, {"ft_lr": 0.3}]


def fpf_runs(method, ways):
    return [resolve("seq-digits", method, {**QUICK, "repair": "fpf", **way})[0] for way in ways]


def matrix_alone(settings):
    return run(settings).accuracy_matrix


def test_runs_in_lanes_leave_the_records_of_single_runs(tmp_path):
    ways = [(method, seed) for method in ("er", "sgd") for seed in (0, 1)]
    settings = [resolve("seq-digits", method, {**QUICK, "seed": seed})[0] for method, seed in ways]
    records = {made.id: made for _, made in run_lanes(settings, lanes=2, out=tmp_path)}
    assert set(records) == {one.id for one in settings}
    for one in settings:
        stored = record.read(record.path(tmp_path, one))
        assert lasting(run(one)) == lasting(stored) == lasting(records[one.id])
    assert {made.id for _, made in run_lanes(settings, lanes=2, out=tmp_path)} == set(records)


def test_recipes_in_lanes_leave_the_records_of_single_runs():
    ways = [{"seed": 0}, {"seed": 1}, {"seed": 0, "anytime": True}]
    settings = [resolve("seq-digits", None, {**QUICK, **way})[0] for way in ways]
    records = {made.id: made for _, made in run_lanes(settings, lanes=3)}
    for one in settings:
        assert lasting(records[one.id]) == lasting(run(one))


def test_a_failed_run_in_lanes_stops_no_other():
    ways = [{**QUICK, "lr": 1e20}, {**QUICK, "seed": 1}, QUICK, {**QUICK, "buffer": 3}]
    settings = [resolve("seq-digits", "er", given)[0] for given in ways]
    results = {one.id: result for one, result in run_lanes(settings, lanes=2)}
    assert isinstance(results[settings[0].id].error, NonFiniteError)
    assert "Traceback" in results[settings[0].id].trace
    assert "buffer is 3" in str(results[settings[3].id].error)
    assert results[settings[2].id].accuracy > 15


def test_a_job_returns_how_each_run_ended(tmp_path):
    runs = [Planned(*resolve("seq-digits", "sgd", {**QUICK, "lr": rate})) for rate in (0.1, 1e20)]
    done, failed = run_job(runs, None, tmp_path)
    assert done == RunDone(runs[0].settings)
    assert done.record.sources == runs[0].sources
    assert failed == RunFailed(runs[1].settings, failed.error)
    assert failed.error.startswith("NonFiniteError: ")
    assert "Traceback" in failed.trace


def test_a_run_whose_file_is_corrupt_is_lost(tmp_path):
    planned = Planned(*resolve("seq-digits", "sgd", QUICK))
    file = checkpoint.path(tmp_path, planned.settings)
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    (outcome,) = run_job([planned], None, tmp_path)
    assert "is corrupt" in outcome.error
    assert outcome.lost


FINETUNINGS = [
    {"repair": "none"},
    {"groups": "all", "ft_lr": 0.05},
    {"ft_lr": OVERFLOWS},
    {"ft_lr": 0.1},
    {"ft_lr": 0.01, "steps": 7},
    {"ft_lr": 0.1, "kd": 0.5},
    {"ft_lr": 0.1, "kd": 0.2},
    {"budget": 0.5},
    {"budget": 2.0},
]


@pytest.mark.parametrize("method", ["er", "icarl", "sgd", "oewc", "derpp", "si"])
def test_runs_that_differ_in_fpf_share_a_training(method, tmp_path, monkeypatch):
    settings = fpf_runs(method, [way for way in FINETUNINGS if method != "icarl" or "kd" not in way])
    fails = [one.id for one in settings if one.finetune is not None and one.finetune.lr == OVERFLOWS]
    trainings = len({one.training_id for one in settings})
    assert trainings == (1 if method == "icarl" else 2)
    expected = {one.id: lasting(run(one)) for one in settings if one.id not in fails}
    from_start = count_starts(monkeypatch)
    for lanes in (1, 3) if method == "er" else (3,):
        from_start.clear()
        results = {one.id: result for one, result in run_lanes(settings, lanes, tmp_path / str(lanes))}
        assert from_start.count(True) == trainings
        assert len(from_start) == len(results) == len(settings)
        for one in settings:
            if one.id in fails:
                assert "overflow" in str(results[one.id].error)
                continue
            assert lasting(results[one.id]) == expected[one.id]
            assert lasting(record.read(record.path(tmp_path / str(lanes), one))) == expected[one.id]


def count_starts(monkeypatch):
    """Return a list that gets an entry for each run that is built: whether it starts without a state."""
    starts = []

    def build(*arguments, state, **how):
        starts.append(state is None)
        return build_run(*arguments, state=state, **how)

    monkeypatch.setattr(checkpoint, "build_run", build)
    return starts


def test_if_a_shared_training_cannot_start_every_run_fails():
    results = [result for _, result in run_lanes(fpf_runs("er", [{**way, "buffer": 3} for way in RATES]), 2)]
    assert len(results) == 3
    assert all("buffer is 3" in str(result.error) for result in results)


def test_a_shared_training_resumes_from_inside_its_repair(tmp_path):
    """The state to share is over by then, so the next run trains."""
    settings = fpf_runs("er", RATES)
    stop = Stop()
    interrupted = CheckpointedRun(settings[0], build_stream(settings[0]), tmp_path, None, sources={})
    for event in interrupted.run:
        if isinstance(event, Trained):
            stop.since = 0.0
        if interrupted.observe(event, stop):
            break
    assert checkpoint.path(tmp_path, settings[0]).exists()
    for one, result in run_lanes(settings, 1, tmp_path):
        assert result.accuracy_matrix == matrix_alone(one)


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("er", {"network": "own_parts:network"}),
        ("er", {"network": "own_parts.network"}),
        ("own_parts:Mine", {}),
        ("own_parts.Mine", {}),
    ],
)
def test_a_users_method_or_network_shares_no_training(method, part):
    for way in ({"repair": "fpf", "ft_lr": 0.1}, {"repair": "fpf", "ft_lr": 0.2}, {}):
        settings = resolve("seq-digits", method, {**way, **part})[0]
        assert settings.training_id == settings.id


def test_without_memory_for_a_state_every_run_trains(monkeypatch):
    settings = fpf_runs("er", [*RATES[:2], {"repair": "none"}])

    def fail(run):
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(loop.Run, "state_dict", fail)
    for one, result in run_lanes(settings, 2):
        assert result.accuracy_matrix == matrix_alone(one)


def test_sharing_runs_come_before_the_next_training():
    """So that the shared state is not held for longer."""
    settings = fpf_runs("er", [{"seed": seed, "ft_lr": rate} for seed in (0, 1, 2) for rate in (0.1, 0.2)])
    started = []
    list(run_lanes(settings, 1, on_start=lambda one: started.append((one.seed, one.finetune.lr))))
    assert started == [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]


class RunsOutOfMemory:
    """A run for which memory runs out at its first event of a kind."""

    def __init__(self, run, kind, failures):
        self.run, self.engine, self.kind, self.failures = run, run.engine, kind, failures
        self.state_dict, self.close = run.state_dict, run.close

    def __next__(self):
        event = next(self.run)
        if isinstance(event, self.kind):
            self.failures.append(event)
            raise torch.cuda.OutOfMemoryError("no room")
        return event


@pytest.mark.parametrize(
    ("which", "kind"),
    [(1, TaskEnded), (1, Repaired), (3, Repaired)],
    ids=["the shared training", "its repair", "the repair of a run that resumes"],
)
def test_a_postponed_run_ends_as_alone(which, kind, monkeypatch):
    settings = fpf_runs("er", [{"seed": 1, "epochs": 4}, *RATES])
    failures = []

    def build(one, *arguments, **how):
        started = build_run(one, *arguments, **how)
        return RunsOutOfMemory(started, kind, failures) if one == settings[which] and not failures else started

    monkeypatch.setattr(checkpoint, "build_run", build)
    results = list(run_lanes(settings, 3))
    assert len(failures) == 1
    monkeypatch.undo()
    for one, result in results:
        assert result.accuracy_matrix == matrix_alone(one)


def test_a_folder_that_cannot_be_written_fails_before_training(tmp_path):
    (tmp_path / "file").touch()
    started = []
    with pytest.raises(OSError, match="where nothing can be written"):
        list(run_lanes([resolve("seq-digits", "sgd", QUICK)[0]], out=tmp_path / "file", on_start=started.append))
    assert not started


def test_a_corrupt_record_stops_no_other_run(tmp_path):
    runs = [resolve("seq-digits", "sgd", {**QUICK, "seed": seed})[0] for seed in (0, 1)]
    record.path(tmp_path, runs[0]).parent.mkdir()
    record.path(tmp_path, runs[0]).write_text("{")
    results = {one.id: result for one, result in run_lanes(runs, out=tmp_path)}
    assert "is not a record" in str(results[runs[0].id].error)
    assert results[runs[1].id].accuracy_matrix == matrix_alone(runs[1])


@pytest.mark.parametrize("place", [(loop.Run, "state_dict"), (checkpoint, "save")], ids=["state", "file"])
def test_without_memory_for_a_checkpoint_the_run_continues(place, tmp_path, monkeypatch):
    def out_of_memory(*_):
        raise torch.cuda.OutOfMemoryError("no room for a copy")

    monkeypatch.setattr(*place, out_of_memory)
    settings = resolve("seq-digits", "er", QUICK)[0]
    with pytest.warns(UserWarning, match="no checkpoint was written: no room for a copy"):
        ((_, finished),) = run_lanes([settings], 1, tmp_path, schedule=Schedule(steps=10, seconds=None))
    monkeypatch.undo()
    assert finished.accuracy_matrix == matrix_alone(settings)


def test_a_training_that_ended_is_not_repeated(tmp_path, monkeypatch):
    settings = fpf_runs("er", RATES)
    stop, share = Stop(), _Pack._share

    def share_and_stop(pack, member, run):
        share(pack, member, run)
        stop.since = time.monotonic()

    monkeypatch.setattr(_Pack, "_share", share_and_stop)
    with pytest.raises(Stopped):
        list(run_lanes(settings, 1, tmp_path, stop=stop))
    monkeypatch.undo()
    assert all(checkpoint.path(tmp_path, one).exists() for one in settings)
    from_start = count_starts(monkeypatch)
    results = list(run_lanes(settings, 1, tmp_path))
    assert from_start == [False] * 3
    for one, result in results:
        assert result.accuracy_matrix == matrix_alone(one)
