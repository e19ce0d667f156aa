"""Plans expand into runs, and mistakes in them are named."""

from pathlib import Path

import pytest

from forgetless.experiments.jobs import group_by_training
from forgetless.experiments.plan import expand_plan, read_plan
from forgetless.experiments.ray import pack_groups
from forgetless.experiments.settings import resolve

HEAD = 'stream = "seq-digits"\nmethod = "er"\n'


def test_lists_expand_and_blocks_inherit():
    runs = expand_plan(
        {
            "stream": "seq-digits",
            "seeds": 2,
            "runs": [
                {"method": ["er", "derpp"], "repair": ["none", "fpf"]},
                {"method": "sgd", "repair": "k-fpf", "every": [50, 100], "seed": 7},
            ],
        }
    )
    assert [(run.settings.label, run.settings.seed) for run in runs] == [
        *((label, seed) for seed in (0, 1) for label in ("er", "fpf+er", "derpp", "fpf+derpp")),
        ("k-fpf-ce", 7),
        ("k-fpf-ce", 7),
    ]
    assert [run.settings.finetune.every for run in runs[-2:]] == [50, 100]


def test_duplicates_are_removed():
    assert len(expand_plan({"stream": "seq-digits", "method": ["er", "er"], "seed": [0, 0]})) == 1


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["fc2", "fc3"], [("fc2", "fc3")]),
        ([["fc2", "fc3"], "all"], [("fc2", "fc3"), "all"]),
        (["auto", "all", ["fc2", "fc3"]], ["auto", "all", ("fc2", "fc3")]),
    ],
)
def test_lists_of_lists_expand_for_groups(groups, expected):
    runs = expand_plan({"stream": "seq-digits", "method": "er", "repair": "fpf", "groups": groups})
    assert [run.settings.finetune.groups for run in runs] == expected


def test_runs_that_share_a_training_stay_together():
    values = {"stream": "seq-digits", "method": ["er", "sgd"], "repair": ["none", "fpf"], "seeds": 2}
    runs = expand_plan({**values, "runs": [{}, {"repair": "fpf", "ft_lr": 0.3}, {"repair": "k-fpf"}]})

    def key(run):
        finetune = run.settings.finetune
        return run.settings.label, run.settings.seed, finetune.lr if finetune else 0

    groups = group_by_training(runs)
    assert [sorted(map(key, group)) for group in groups if len(group) > 1] == [
        sorted([(method, seed, 0), (f"fpf+{method}", seed, 0.1), (f"fpf+{method}", seed, 0.3)])
        for method in ("er", "sgd")
        for seed in (0, 1)
    ]
    assert sum(map(len, groups)) == len(runs) == 16
    assert [len(pack) for pack in pack_groups(groups, 4)] == [6, 6, 4]
    assert [len(pack) for pack in pack_groups(groups, 8)] == [9, 7]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("stream = [", "is not TOML"),
        ('method = "er"', "stream is missing: every run needs one"),
        ('stream = "seq-digits"\nmethod = 3', "method is 3; it must be a name"),
        ('stream = "seq-digit"\nmethod = "er"', "no stream named 'seq-digit'; did you mean 'seq-digits'"),
        (HEAD + "seeds = 0", "seeds is 0; it must be a whole number of 1 or more"),
        (HEAD + "lr = []", "lr is an empty list; it must have at least one value"),
        (HEAD + "runs = 3", "runs is 3; it must be blocks, each headed"),
        (HEAD + "runs = []", r"runs is \[\]; it must be blocks, each headed"),
        ('[[run]]\nstream = "seq-digits"\nmethod = "er"', r"run is a block; only blocks headed \[\[runs\]\] are valid"),
        (HEAD + "epoch = 3", "er has no setting 'epoch'; did you mean 'epochs'"),
        (HEAD + "kd = 0.5", "kd is a setting of FPF"),
        (HEAD + "lr = [0.1, nan]", "lr is nan; it must be a finite number above 0"),
        (HEAD + "epochs = 0", "epochs is 0; it must be a whole number of 1 or more"),
        (HEAD + "buffer = -5", "buffer is -5; it must be a whole number of 0 or more"),
        (HEAD + 'device = "gpu"', "device is 'gpu'; it must be cpu, cuda"),
        (HEAD + 'validation = "no"', "validation is 'no'; it must be true or false"),
        (HEAD + "seeds = 2\nseed = [7]", r"seeds is 2 and seed is \[7\]; set only one of them"),
    ],
)
def test_errors_name_file_and_setting(text, match, tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=match) as error:
        read_plan(file)
    assert "plan.toml" in str(error.value)


def test_runs_without_a_method_are_the_recommended_recipe():
    runs = [run.settings for run in expand_plan({"stream": ["seq-digits", "view-digits"], "seeds": 2})]
    assert [run.id for run in runs] == [
        resolve(stream, None, {"seed": seed})[0].id for stream in ("seq-digits", "view-digits") for seed in (0, 1)
    ]


def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match="there is no file nowhere.toml"):
        read_plan(Path("nowhere.toml"))


def test_a_folder_is_not_a_plan(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder; it must be a TOML file"):
        read_plan(tmp_path)
