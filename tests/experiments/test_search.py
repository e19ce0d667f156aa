import json

import pytest

from forgetless.experiments import record
from forgetless.experiments.run import run
from forgetless.experiments.search import Found, check_grid, paper_grid, path, rungs, search
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import Done, Failed

SHARED = {"epochs": 1, "batch": 50, "replay": 50}


def test_the_grids_of_the_paper():
    assert paper_grid("seq-cifar10", "k-fpf", distill=False) == {
        "lr": (0.05, 0.03, 0.01),
        "ft_lr": (0.075, 0.05, 0.03, 0.01),
    }
    assert paper_grid("seq-cifar10", "k-fpf", distill=True)["kd"] == (0.5, 0.2, 0.1)
    with pytest.raises(ValueError, match="the paper has no grid for this .*: give one in a TOML file, --grid FILE"):
        paper_grid("seq-cifar10", "none", distill=False)


def test_halving_gives_further_seeds_to_the_better_half_only():
    assert rungs(12, 3, halving=True) == [12, 6, 3]
    assert rungs(12, 3, halving=False) == [12, 12, 12]
    assert rungs(3, 4, halving=True) == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        ({}, "the grid is empty"),
        ({"lr": 0.1}, "the grid has lr = 0.1; it must be a list of one value or more"),
        ({"lr": []}, r"the grid has lr = \[\]"),
        ({"seed": [1, 2]}, "the grid has seed, which the search sets itself"),
    ],
)
def test_a_bad_grid_is_refused(grid, match):
    with pytest.raises(ValueError, match=match):
        check_grid(grid)


def test_the_best_on_validation_is_retrained_on_all_data_and_everything_is_kept(tmp_path):
    grid = {"lr": (0.001, 0.1, 1e20)}
    notes = list(search("seq-digits", "er", SHARED, grid, tmp_path, seeds=2, search_seeds=2, halving=True, workers=1))
    found = notes[-1]
    assert isinstance(found, Found)
    by_rate = {point["lr"]: accuracies for point, accuracies in found.points}
    assert found.chosen == {"lr": 0.1}  # the slow one learns little, the fast one diverges
    assert by_rate[0.1][0] > by_rate[0.001][0]
    assert (len(by_rate[0.1]), len(by_rate[0.001]), len(by_rate[1e20])) == (2, 1, 0)
    assert found.saved == 2
    assert [type(note) for note in notes].count(Failed) == 1
    validated = resolve("seq-digits", "er", {**SHARED, "lr": 0.1, "validation": True, "seed": 1})[0]
    assert by_rate[0.1][1] == record.read(record.path(tmp_path, validated)).accuracy
    final = [
        resolve("seq-digits", "er", {**SHARED, "lr": 0.1, "seed": seed, "validation": False})[0] for seed in (0, 1)
    ]
    assert found.ids == [one.id for one in final]
    assert found.accuracies == [record.read(record.path(tmp_path, one)).accuracy for one in final]
    assert found.mean == pytest.approx(sum(found.accuracies) / 2)
    written = json.loads(path(tmp_path, found).read_text())
    assert written["chosen"] == {"lr": 0.1}
    assert written["points"][1] == {"point": {"lr": 0.1}, "validation": by_rate[0.1]}
    again = list(search("seq-digits", "er", SHARED, grid, tmp_path, seeds=2, search_seeds=2, halving=True, workers=1))
    assert all(note.again for note in again if isinstance(note, Done | Failed))
    assert again[-1] == found


def test_a_grid_that_fails_as_a_whole_says_so(tmp_path):
    with pytest.raises(ValueError, match="every point of the grid failed, the first with: NonFiniteError: the loss"):
        list(search("seq-digits", "er", SHARED, {"lr": (1e20,)}, tmp_path, seeds=1, workers=1))


def test_a_chosen_point_that_fails_says_why(tmp_path):
    (tmp_path / "runs").mkdir()
    final = resolve("seq-digits", "er", {**SHARED, "lr": 0.1, "seed": 0, "validation": False})[0]
    other = resolve("seq-digits", "sgd", SHARED)[0]
    (tmp_path / "runs" / final.id).mkdir()
    run(other, out=tmp_path)
    record.path(tmp_path, other).rename(record.path(tmp_path / "runs", final))
    said = "the chosen point failed on all training images, the first seed with: .* is the record of another run"
    with pytest.raises(ValueError, match=said):
        list(search("seq-digits", "er", SHARED, {"lr": (0.1,)}, tmp_path / "runs", seeds=1, workers=1))


def test_an_unknown_setting_of_a_grid_is_named(tmp_path):
    for given, match in (
        ({"seed": 7}, "seed is 7, but a search sets it: leave it out"),
        ({"lr": 0.9}, "lr is 0.9, and the grid has it too: leave it out of one of them"),
    ):
        with pytest.raises(ValueError, match=match):
            list(search("seq-digits", "er", given, {"lr": [0.1]}, tmp_path))
    with pytest.raises(ValueError, match="er has no setting 'lrr'; did you mean 'lr'"):
        list(search("seq-digits", "er", SHARED, {"lrr": (0.1, 0.2)}, tmp_path, seeds=1, workers=1))


@pytest.mark.parametrize(
    ("method", "grid", "match"),
    [
        ("er", {"network": ("mlp", "nowhere:small")}, "network 'nowhere:small': no module named 'nowhere'"),
        ("derpp", {"alpha": (0.1, -1.0)}, "alpha is -1.0; it must be a finite number of 0 or more"),
    ],
)
def test_a_point_that_cannot_begin_is_refused_before_any_is_trained(method, grid, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        list(search("seq-digits", method, SHARED, grid, tmp_path, seeds=1, workers=1))
    assert not list(tmp_path.iterdir())


def test_nothing_of_the_test_set_reaches_the_choice(tmp_path, monkeypatch):
    """With every test label wrong, what was searched and chosen is the same; only the end is not."""
    (tmp_path / "poisoned.py").write_text(
        "from dataclasses import replace\n"
        "from forgetless import streams\n"
        "from forgetless.data.stream import Split\n"
        "clean = streams.seq_digits()\n"
        "def spoil(task):\n"
        "    first, second = task.classes\n"
        "    return replace(task, test=Split(task.test.x, first + second - task.test.y))\n"
        "spoilt = replace(clean, tasks=tuple(spoil(task) for task in clean.tasks))\n"
    )
    monkeypatch.chdir(tmp_path)
    outcomes = []
    for name in ("poisoned:clean", "poisoned:spoilt"):
        given = {**SHARED, "epochs": 4, "network": "mlp", "buffer": 200}
        outcomes.append(list(search(name, "er", given, {"lr": (0.01, 0.1)}, tmp_path, seeds=1, workers=1))[-1])
    clean, spoilt = outcomes
    assert clean.points == spoilt.points
    assert clean.chosen == spoilt.chosen
    assert clean.mean > 60
    assert spoilt.mean < 20


def test_what_failed_is_tried_again_when_asked_for(tmp_path):
    grid = {"lr": (0.1,)}
    settings = resolve("seq-digits", "sgd", {**SHARED, "lr": 0.1, "validation": True})[0]
    (tmp_path / settings.id).mkdir()
    (tmp_path / settings.id / "error.json").write_text('{"error": "no room"}')
    with pytest.raises(
        ValueError, match=r"the first with: no room; .* with retry \(--retry\) what left an error.json too"
    ):
        list(search("seq-digits", "sgd", SHARED, grid, tmp_path, seeds=1, workers=1))
    *_, found = search("seq-digits", "sgd", SHARED, grid, tmp_path, seeds=1, workers=1, retry=True)
    assert found.chosen == {"lr": 0.1}


def test_searches_with_other_seeds_are_kept_beside_each_other(tmp_path):
    files = set()
    for seeds in (1, 2):
        *_, found = search("seq-digits", "sgd", SHARED, {"lr": (0.1,)}, tmp_path, seeds=seeds, workers=1)
        files.add(path(tmp_path, found))
    assert all(file.exists() for file in files)
    assert len(files) == 2


DEADLY = """
import os, signal
from pathlib import Path
from forgetless.methods.er import ER

class Deadly(ER):
    def begin(self, learner):
        lives = Path(__file__).with_name("lives")
        left = int(lives.read_text())
        if learner.lr == 0.2 and left:
            lives.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_point_whose_process_died_is_tried_once_more_and_not_taken_for_a_bad_one(tmp_path, monkeypatch, deaths):
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "lives").write_text(str(deaths))
    monkeypatch.chdir(tmp_path)
    grid = {"lr": (0.0001, 0.2)}
    searching = search("seq-digits", "deadly:Deadly", SHARED, grid, tmp_path / "runs", seeds=1, workers=1)
    if deaths == 1:
        *_, found = searching
        assert found.chosen == {"lr": 0.2}
        assert [len(scores) for _, scores in found.points] == [1, 1]
    else:
        with pytest.raises(ValueError, match="a run was lost twice: its process ended with exit code -9. Nothing was"):
            list(searching)
        assert not list((tmp_path / "runs").glob("search-*.json"))
