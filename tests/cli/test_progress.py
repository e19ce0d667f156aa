"""The line that shows on a terminal how far a sweep is."""

import io

import pytest
from rich.console import Console

from forgetless.cli import output, progress
from forgetless.cli.progress import SweepProgress, remaining_time, show_sweep
from forgetless.experiments.checkpoint import Stop, Stopped
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunFailed, RunStarted, start
from forgetless.experiments.labels import labels
from forgetless.experiments.run import run
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import sweep
from forgetless.training.events import Stepped


@pytest.fixture
def terminal(monkeypatch):
    """Return the text that goes to a terminal of 100 columns."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    for module in (output, progress):
        monkeypatch.setattr(module, "remarks", console)
    return text


def test_a_terminal_shows_one_line_with_the_remaining_time(terminal, tmp_path, monkeypatch):
    clock = iter([0.0, 30.0, 60.0, 90.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    runs = [resolve("seq-digits", "sgd", {"seed": seed})[0] for seed in range(4)]
    shown = SweepProgress(4, tmp_path, lambda settings: labels(runs)[settings.id])
    monkeypatch.setattr(shown._line, "start", lambda: None)  # its thread would draw at any time
    with shown:
        shown.show(RunDone(runs[0], earlier=True))
        shown.show(RunStarted(runs[1]))
        shown.show(RunDone(runs[1], earlier=False))
        (task,) = shown._line.tasks
        assert (task.description, task.completed, task.total) == ("0 running", 2, 4)
        assert task.fields["eta"] == "ETA 1 min"  # one run took 30 s, and two are left
        shown.show(RunStarted(runs[2]))
        shown.show(RunFailed(runs[2], "it broke", earlier=False))
        assert task.description == "0 running, 1 failed"
        assert task.fields["eta"] == "ETA 30 s"
    assert str(shown) == "1 done, 1 finished earlier, 1 failed"
    assert "2/4" not in terminal.getvalue()  # no line per run


def test_failures_that_differ_in_the_id_are_one(tmp_path, capsys):
    runs = [resolve("seq-digits", "sgd", {"seed": seed})[0] for seed in range(3)]
    with SweepProgress(3, tmp_path, lambda settings: f"seed {settings.seed}") as shown:
        for settings in runs[:2]:
            shown.show(RunFailed(settings, f"runs/{settings.id} is full", earlier=False))
        shown.show(RunFailed(runs[2], f"{runs[2].id} is lost", earlier=False))
    said = capsys.readouterr().err.splitlines()
    assert said[-4:] == [
        "2 runs failed: runs/<id> is full",
        f"  seed 0 ({runs[0].id}); seed 1 ({runs[1].id})",
        f"1 run failed: {runs[2].id} is lost",
        f"  seed 2 ({runs[2].id})",
    ]


def test_a_run_of_a_sweep_says_where_it_resumes(tmp_path, capsys):
    settings, sources = resolve("seq-digits", "sgd", {"epochs": 8, "batch": 10})
    stop = Stop()

    def ask(event):
        if isinstance(event, Stepped) and event.step >= 1000:
            stop.since = 0.0

    with pytest.raises(Stopped):
        run(settings, sources, tmp_path, ask, stop=stop)
    planned = [Planned(settings, sources)]
    shown = show_sweep(planned, tmp_path, sweep(planned, tmp_path, Execution(workers=1)))
    assert str(shown) == "1 done, 0 finished earlier, 0 failed"
    said, _ = capsys.readouterr().err.splitlines()
    assert said == "sgd: resuming at task 5, step 1,000"


def test_a_corrupt_checkpoint_is_not_announced(tmp_path):
    settings = resolve("seq-digits", "sgd", {})[0]
    (tmp_path / settings.id).mkdir()
    (tmp_path / settings.id / "checkpoint.safetensors").touch()
    assert start(settings, tmp_path) == RunStarted(settings)


def test_nothing_is_estimated_before_the_first_run_ends():
    assert remaining_time(0.0, 0, 5) == ""
    assert remaining_time(0.0, 5, 0) == ""
