"""Searches choose on validation data only, and keep everything they tried."""

import json

import pytest

from forgetless.experiments import record, workers
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import RunDone, RunFailed, RunStarted, run_job
from forgetless.experiments.run import run as run_settings
from forgetless.experiments.search import SearchResult, paper_grid, points_per_seed, read_grid, search
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import error_path

SHARED = {"epochs": 1, "batch": 50, "replay": 50}


def execute(runs, out, execution):
    """Execute runs in this process, since a new one would import torch again."""
    yield from (RunStarted(run.settings) for run in runs)
    yield from run_job(runs, 1, out)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(workers, "execute", execute)


def test_the_paper_has_these_grids():
    assert paper_grid("seq-cifar10", "k-fpf", distill=False) == {
        "lr": (0.05, 0.03, 0.01),
        "ft_lr": (0.075, 0.05, 0.03, 0.01),
    }
    assert paper_grid("seq-cifar10", "k-fpf", distill=True)["kd"] == (0.5, 0.2, 0.1)
    with pytest.raises(ValueError, match="the paper has no grid for this .*: write one in a TOML file, --grid FILE"):
        paper_grid("seq-cifar10", "none", distill=False)


def test_halving_halves_the_points_per_seed():
    assert points_per_seed(12, 3, halving=True) == [12, 6, 3]
    assert points_per_seed(12, 3, halving=False) == [12, 12, 12]
    assert points_per_seed(3, 4, halving=True) == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "the grid is empty"),
        ("lr = 0.1", "the grid has lr = 0.1; it must be a list of at least one value"),
        ("lr = []", r"the grid has lr = \[\]"),
        ("seed = [1, 2]", "the grid has seed, which the search sets itself"),
    ],
)
def test_an_invalid_grid_is_refused(text, match, tmp_path):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(ValueError, match=f"grid.toml: {match}"):
        read_grid(tmp_path / "grid.toml")


def test_the_best_point_is_trained_on_all_data(tmp_path):
    grid = {"lr": (0.001, 0.1, 1e20)}  # the slow one learns little, the fast one diverges
    halved = {"seeds": 2, "search_seeds": 2, "halving": True}
    *events, result = search("seq-digits", "er", SHARED, grid, tmp_path, **halved)
    assert isinstance(result, SearchResult)
    by_rate = {point.values["lr"]: point.accuracies for point in result.points}
    assert result.chosen == {"lr": 0.1}
    assert by_rate[0.1][0] > by_rate[0.001][0]
    assert (len(by_rate[0.1]), len(by_rate[0.001]), len(by_rate[1e20])) == (2, 1, 0)
    assert result.saved_runs == 2
    assert [type(event) for event in events].count(RunFailed) == 1

    def settings(seed, validation):
        return resolve("seq-digits", "er", {**SHARED, "lr": 0.1, "seed": seed, "validation": validation})[0]

    assert by_rate[0.1] == [record.read_run(tmp_path, settings(seed, True)).accuracy for seed in (0, 1)]
    assert result.records == [record.read_run(tmp_path, settings(seed, False)) for seed in (0, 1)]
    first, second = (finished.accuracy for finished in result.records)
    assert result.test_accuracy == pytest.approx(((first + second) / 2, abs(first - second) / 2**0.5))
    written = json.loads(result.path(tmp_path).read_text())
    assert written["chosen"] == {"lr": 0.1}
    assert written["points"][1] == {"point": {"lr": 0.1}, "validation": by_rate[0.1]}
    assert written["ids"] == [finished.id for finished in result.records]
    *events, again = search("seq-digits", "er", SHARED, grid, tmp_path, **halved)
    assert all(event.earlier for event in events if isinstance(event, RunDone | RunFailed))
    assert again == result


def test_a_grid_that_fails_everywhere_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="every point of the grid failed, the first with: NonFiniteError: the loss"):
        list(search("seq-digits", "er", SHARED, {"lr": (1e20,)}, tmp_path, seeds=1))


def test_a_chosen_point_that_fails_is_an_error(tmp_path):
    final = resolve("seq-digits", "er", {**SHARED, "lr": 0.1, "seed": 0, "validation": False})[0]
    other = resolve("seq-digits", "sgd", SHARED)[0]
    (tmp_path / "runs" / final.id).mkdir(parents=True)
    run_settings(other, out=tmp_path)
    record.path(tmp_path, other).rename(record.path(tmp_path / "runs", final))
    message = "the chosen point failed on all training images: .* is the record of another run"
    with pytest.raises(ValueError, match=message):
        list(search("seq-digits", "er", SHARED, {"lr": (0.1,)}, tmp_path / "runs", seeds=1))


@pytest.mark.parametrize(
    ("method", "given", "grid", "match"),
    [
        ("er", {"seed": 7}, {"lr": [0.1]}, "seed is 7, but a search sets it itself: remove it"),
        ("er", {"lr": 0.9}, {"lr": [0.1]}, "lr is 0.9, but the grid has it too: remove one of them"),
        ("er", SHARED, {"lrr": (0.1, 0.2)}, "er has no setting 'lrr'; did you mean 'lr'"),
        ("er", SHARED, {"network": ("mlp", "nowhere:small")}, "network 'nowhere:small': no module named 'nowhere'"),
        ("derpp", SHARED, {"alpha": (0.1, -1.0)}, "alpha is -1.0; it must be a finite number of 0 or more"),
    ],
)
def test_invalid_settings_are_refused_before_training(method, given, grid, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        list(search("seq-digits", method, given, grid, tmp_path, seeds=1))
    assert not list(tmp_path.iterdir())


def test_the_test_set_does_not_reach_the_choice(tmp_path, monkeypatch):
    """With every test label wrong, the search and its choice are the same; only the final accuracy differs."""
    (tmp_path / "poisoned.py").write_text(
        "from dataclasses import replace\n"
        "from forgetless.data.benchmarks import seq_digits\n"
        "from forgetless.data.stream import Split\n"
        "clean = seq_digits()\n"
        "def spoil(task):\n"
        "    first, second = task.classes\n"
        "    return replace(task, test=Split(task.test.x, first + second - task.test.y))\n"
        "spoilt = replace(clean, tasks=tuple(spoil(task) for task in clean.tasks))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = {**SHARED, "epochs": 4, "network": "mlp", "buffer": 200}
    clean, spoilt = (
        list(search(f"poisoned:{name}", "er", given, {"lr": (0.01, 0.1)}, tmp_path, seeds=1))[-1]
        for name in ("clean", "spoilt")
    )
    assert clean.points == spoilt.points
    assert clean.chosen == spoilt.chosen
    assert clean.records[0].accuracy > 60
    assert spoilt.records[0].accuracy < 20


def test_failed_runs_are_repeated_on_request(tmp_path):
    settings = resolve("seq-digits", "sgd", {**SHARED, "lr": 0.1, "validation": True})[0]
    error_path(tmp_path, settings).parent.mkdir()
    error_path(tmp_path, settings).write_text('{"error": "no room"}')
    call = ("seq-digits", "sgd", SHARED, {"lr": (0.1,)}, tmp_path)
    with pytest.raises(ValueError, match=r"the first with: no room; .* with retry \(--retry\) also those that left an"):
        list(search(*call, seeds=1))
    *_, result = search(*call, seeds=1, execution=Execution(retry=True))
    assert result.chosen == {"lr": 0.1}


def test_searches_with_other_seeds_have_other_files(tmp_path):
    files = set()
    for seeds in (1, 2):
        *_, result = search("seq-digits", "sgd", SHARED, {"lr": (0.1,)}, tmp_path, seeds=seeds)
        files.add(result.path(tmp_path))
    assert all(file.exists() for file in files)
    assert len(files) == 2


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_lost_run_is_repeated_once(deaths, tmp_path, monkeypatch):
    left = deaths

    def dying(runs, out, execution):
        nonlocal left
        for run in runs:
            if run.settings.lr == 0.2 and left:
                left -= 1
                yield RunFailed(run.settings, "its process ended with exit code -9", lost=True)
            else:
                yield from run_job([run], 1, out)

    monkeypatch.setattr(workers, "execute", dying)
    searching = search("seq-digits", "er", SHARED, {"lr": (0.0001, 0.2)}, tmp_path, seeds=1)
    if deaths == 1:
        *_, result = searching
        assert result.chosen == {"lr": 0.2}
        assert [len(point.accuracies) for point in result.points] == [1, 1]
    else:
        with pytest.raises(ValueError, match="a run was lost twice: its process ended with exit code -9. No point was"):
            list(searching)
        assert not list(tmp_path.glob("search-*.json"))
