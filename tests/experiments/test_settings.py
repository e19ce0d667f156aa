import dataclasses
import json
import re
from pathlib import Path

import hypothesis
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from forgetless.cli.options import parse_options, settings_except, with_options
from forgetless.config.fields import setting
from forgetless.experiments import record
from forgetless.experiments import settings as settings_module
from forgetless.experiments.plan import expand_plan
from forgetless.experiments.settings import Settings, resolve
from forgetless.repair.settings import BUDGET, Finetune

COMPLETE = {"stream": "seq-digits", "method": "sgd"}


def test_given_settings_override_presets_and_sources_say_so():
    settings, sources = resolve("seq-cifar10", "derpp", {"buffer": 500, "lr": 0.5, "beta": 2.0})
    assert (settings.lr, settings.epochs, settings.network) == (0.5, 5, "resnet18")
    assert settings.options == {"alpha": 0.2, "beta": 2.0}
    assert sources["lr"] == sources["beta"] == "given"
    assert sources["alpha"] == "DER authors, seq-cifar10, buffer 500"


def test_the_id_identifies_the_settings():
    one = resolve("seq-digits", "er", {})[0]
    assert one.id == resolve("seq-digits", "er", {"lr": one.lr})[0].id
    assert len(one.id) == 12
    others = [resolve("seq-digits", "er", given)[0].id for given in ({"lr": 0.2}, {"seed": 1}, {"repair": "fpf"})]
    assert len({one.id, *others}) == 4


def test_settings_survive_json():
    settings = resolve("seq-digits", "der", {"repair": "k-fpf", "groups": ("fc2", "fc3"), "order": (1, 0), "kd": 0.2})[
        0
    ]
    assert Settings.from_dict(settings.to_dict()) == settings
    assert Settings.from_dict(settings.to_dict()).id == settings.id


@hypothesis.settings(deadline=None)
@given(st.floats(1e-6, 10), st.integers(0, 99), st.sampled_from(["none", "fpf", "k-fpf"]), st.floats(0.01, 10))
def test_any_settings_survive_json(lr, seed, repair, budget):
    given = {"lr": lr, "seed": seed, "repair": repair}
    for more in ({}, {} if repair == "none" else {"budget": budget}):
        settings = resolve("seq-mnist", "er", {**given, **more})[0]
        assert Settings.from_dict(settings.to_dict()) == settings
        assert settings.repair == repair


@pytest.mark.parametrize("repair", ["fpf", "k-fpf"])
def test_a_budget_replaces_the_schedule_and_its_presets(repair):
    settings, sources = resolve("seq-digits", "sgd", {"repair": repair, "budget": 0.5})
    assert settings.finetune == Finetune.within(0.5, spread=repair == "k-fpf", distill=settings.finetune.distill)
    assert sources["budget"] == "given"
    assert not {"every", "steps", "ft_lr", "threshold"} & sources.keys()
    assert settings.label == resolve("seq-digits", "sgd", {"repair": repair})[0].label


@pytest.mark.parametrize(("name", "value"), [("every", 50), ("steps", 10), ("ft_lr", 0.1), ("threshold", 0.5)])
def test_a_budget_and_a_schedule_exclude_each_other(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}, but budget is 0.8: a budget replaces the schedule"):
        resolve("seq-digits", "sgd", {"repair": "k-fpf", "budget": 0.8, name: value})
    with pytest.raises(ValueError, match="a budget replaces it"):
        Settings.from_dict({**COMPLETE, "repair": "k-fpf", "budget": 0.8, name: value})


def test_only_a_users_stream_has_a_budget_by_default():
    own, sources = resolve("own:stream", "sgd", {"repair": "k-fpf"})
    assert (own.finetune.budget, sources["budget"]) == (BUDGET, "default of k-fpf")
    assert resolve("own:stream", "sgd", {"repair": "fpf"})[0].finetune == Finetune.within(spread=False)
    assert resolve("own:stream", "sgd", {"repair": "k-fpf", "every": 50})[0].finetune == Finetune.k_fpf(50)
    assert resolve("own:stream", "sgd", {"repair": "fpf", "budget": None})[0].finetune == Finetune()
    assert resolve("seq-cifar10", "sgd", {"repair": "k-fpf"})[0].finetune.budget is None


def test_a_run_without_a_method_is_the_recommended_recipe():
    settings, sources = resolve("seq-cifar10", None, {"seed": 2})
    finetune = Finetune.within(BUDGET, distill=0.2, groups="all")
    assert settings == Settings(
        stream="seq-cifar10", method="masked", network="resnet18", epochs=5, batch=32, replay=32, buffer=500, lr=0.03,
        policy="distinct", finetune=finetune, seed=2,
    )  # fmt: skip
    recommended = {name for name, source in sources.items() if source == "recommended recipe"}
    assert recommended == {"method", "repair", "kd", "groups", "policy", "lr", "budget", "ft_pad"}
    assert sources["epochs"] == "default of seq-cifar10"


def test_the_recipe_of_a_perceptron_has_the_loss_over_all_classes():
    assert resolve("seq-digits", None, {})[0].method == "sgd"
    assert resolve("own:stream", None, {})[0].method == "sgd"  # the default network is a perceptron
    assert resolve("seq-cifar10", None, {"network": "mlp"})[0].method == "sgd"
    assert resolve("seq-digits", None, {"network": "vgg11"})[0].method == "masked"


def test_a_budget_replaces_the_crops_that_were_searched():
    searched = resolve("seq-pacs", "er", {"repair": "fpf", "buffer": 200})[0]
    assert searched.finetune.pad == 28
    tuned = resolve("seq-pacs", "er", {"repair": "fpf", "buffer": 200, "budget": 0.8})[0]
    assert tuned.finetune.pad == "auto"
    given = resolve("seq-pacs", "er", {"repair": "fpf", "buffer": 200, "budget": 0.8, "ft_pad": 0})[0]
    assert given.finetune.pad == 0
    assert given.to_dict()["ft_pad"] == 0
    for settings in (given, tuned):
        assert Settings.from_dict(settings.to_dict()) == settings
    older = {name: value for name, value in tuned.to_dict().items() if name != "ft_pad"}
    assert Settings.from_dict(older) == given  # 0.21 had no crops within a budget


def test_given_settings_override_the_recipe():
    settings, sources = resolve("seq-digits", None, {"kd": 0.0, "lr": 0.1, "repair": "fpf"})
    assert (settings.lr, settings.finetune.distill, settings.repair) == (0.1, 0.0, "fpf")
    assert sources["kd"] == "given"
    assert resolve("seq-digits", None, {"every": 30})[0].finetune == Finetune.k_fpf(30, distill=0.2, groups="all")
    assert resolve("own:stream", None, {"network": "resnet18"})[0].method == "masked"


def test_labels_are_what_people_call_the_runs():
    def label(method, **given):
        return resolve("seq-digits", method, given)[0].label

    assert label("er") == "er"
    assert label("er", repair="fpf") == "fpf+er"
    assert label("er", repair="fpf", groups="all") == "fpf-all+er"
    assert label("sgd", repair="k-fpf") == "k-fpf-ce"
    assert label("sgd", repair="k-fpf", kd=0.5) == "k-fpf-kd"
    assert label("der", repair="k-fpf", groups="all") == "k-fpf-all-ce+der"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"stream": "seq-mnist"}, "stream is 'seq-mnist', but it is not an option: stream and method come first"),
        ({"method": "derpp"}, "method is 'derpp', but it is not an option"),
        ({"options": {"alpha": 1}}, "options is .*, but it is not an option"),
        ({"repair": "fpf", "groups": "all", "threshold": 0.5}, "threshold is 0.5, but the groups are named"),
    ],
)
def test_a_setting_without_effect_is_refused(given, match):
    with pytest.raises(ValueError, match=match):
        resolve("seq-digits", "er", given)


def test_anytime_changes_the_id_and_shares_no_training():
    plain, off, on = (
        resolve("seq-digits", "er", {"repair": "fpf", **g})[0] for g in ({}, {"anytime": False}, {"anytime": True})
    )
    assert plain.id == off.id != on.id
    assert "anytime" not in plain.to_dict()
    assert Settings.from_dict(on.to_dict()) == on
    assert plain.training_id == resolve("seq-digits", "er", {})[0].training_id
    assert on.training_id == on.id


def test_precision_defaults_to_bf16_on_a_gpu():
    assert resolve("seq-digits", "er", {})[0].precision == "fp32"
    assert "precision" not in resolve("seq-digits", "er", {})[0].to_dict()
    settings, sources = resolve("seq-digits", "er", {"device": "cuda"})
    assert (settings.precision, sources["precision"]) == ("bf16", "default on a GPU")
    assert Settings.from_dict(settings.to_dict()) == settings
    assert resolve("seq-digits", "er", {"device": "cuda:1", "precision": "tf32"})[0].precision == "tf32"
    ids = {resolve("seq-digits", "er", {"device": "cuda", "precision": p})[0].id for p in ("fp32", "tf32", "bf16")}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("stream", "method", "given", "match"),
    [
        ("seq-digits", "er", {"precision": "fp8"}, "precision is 'fp8'; it must be one of fp32, tf32, bf16"),
        ("seq-cifer10", "er", {}, "no stream named 'seq-cifer10'; did you mean 'seq-cifar10'"),
        ("seq-digits", "err", {}, "no method named 'err'; did you mean 'er'"),
        ("seq-digits", "er", {"network": "resnet81"}, "no network named 'resnet81'; did you mean 'resnet18'"),
        ("seq-digits", "er", {"repair": "kfpf"}, "repair is 'kfpf'; it must be one of none, fpf, k-fpf"),
        ("seq-digits", "er", {"kd": 0.5}, "kd is a setting of FPF: it goes with --fpf or --k-fpf"),
        ("seq-digits", "er", {"repair": "fpf", "every": 50}, "every is a setting of k-FPF"),
    ],
)
def test_an_impossible_setting_is_refused(stream, method, given, match):
    with pytest.raises(ValueError, match=match):
        resolve(stream, method, given)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("lr", "fast", "a finite number above 0"), ("lr", True, "a finite number above 0"),
        ("epochs", 1.5, "a whole number of 1 or more"), ("buffer", "100", "a whole number of 0 or more"),
        ("network", 3, "a word"), ("validation", "no", "true or false"), ("freeze", [1], "a list of names"),
        ("groups", 3, "auto, all, or names of groups"), ("order", "1,0", "a seed, or a list of classes"),
        ("order", [True, False], "a seed, or a list of classes"), ("groups", "", "auto, all, or names of groups"),
        ("freeze", "", "a list of names"), ("epochs", None, "a whole number of 1 or more"),
        ("kd", "0.5", "a finite number of 0 or more"), ("device", "gpu", "cpu, cuda, cuda:1, …"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(name, value, wanted):
    given = {"repair": "fpf", name: value}
    for make in (lambda: resolve("seq-digits", "sgd", given), lambda: Settings.from_dict({**COMPLETE, **given})):
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}; it must be {wanted}") + "$"):
            make()


PAIRS = [("fc3", "fc1"), (["fc3"], ["fc1"])]


def test_equal_settings_have_one_id():
    words, lists = (resolve("seq-digits", "sgd", {"repair": "fpf", "groups": g, "freeze": f})[0] for g, f in PAIRS)
    assert words.id == lists.id
    assert (words.finetune.groups, words.freeze) == (("fc3",), ("fc1",))
    one, other = (resolve("seq-digits", "sgd", {"lr": lr, "repair": "fpf", "ft_lr": lr})[0] for lr in (1, 1.0))
    assert one.id == other.id
    assert isinstance(one.lr, float)


def test_an_unknown_setting_suggests_the_nearest():
    with pytest.raises(ValueError, match="no setting named 'epoch'; did you mean 'epochs'"):
        Settings.from_dict({"stream": "seq-digits", "method": "er", "epoch": 3})


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve("seq-digits", "er", {})[0].lr = 3


def test_whole_and_fractional_numbers_give_one_run():
    one, other = (resolve("seq-digits", "derpp", {"alpha": value})[0] for value in (1, 1.0))
    assert one.id == other.id
    assert one.options["alpha"] == 1.0
    assert resolve("seq-digits", "oewc", {"fisher_examples": 5})[0].options["fisher_examples"] == 5


def test_crops_of_a_repair_share_a_training():
    plain, cropped = (resolve("seq-organamnist", "er", {"repair": "fpf", **given})[0] for given in ({}, {"ft_pad": 2}))
    assert "ft_pad" not in plain.to_dict()  # as in the records from before there was such a setting
    assert plain.id != cropped.id
    assert plain.training_id == cropped.training_id
    with pytest.raises(ValueError, match="ft_pad is a setting of FPF"):
        resolve("seq-organamnist", "er", {"ft_pad": 2})
    with pytest.raises(ValueError, match="ft_pad is -1; it must be a whole number of 0 or more"):
        resolve("seq-organamnist", "er", {"repair": "fpf", "ft_pad": -1})
    preset, without = (
        resolve("seq-organamnist", "masked", {"repair": "k-fpf", **given})[0] for given in ({}, {"ft_pad": 0})
    )
    assert (preset.finetune.pad, without.finetune.pad) == (2, 0)


def test_a_balanced_buffer_changes_the_id():
    plain, same, balanced = (
        resolve("seq-digits", "er", given)[0] for given in ({}, {"policy": "reservoir"}, {"policy": "balanced"})
    )
    assert "policy" not in plain.to_dict()  # as in the records from before there was such a setting
    assert plain.id == same.id != balanced.id
    assert plain.training_id != balanced.training_id
    assert balanced == Settings.from_dict(balanced.to_dict())
    with pytest.raises(ValueError, match="policy is 'ring'; it must be one of reservoir, balanced"):
        resolve("seq-digits", "er", {"policy": "ring"})


def committed_records():
    """Return every committed record of a run as plain data."""
    files = record.files(Path(__file__).parents[2] / "results")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_committed_records_keep_their_ids():
    committed = committed_records()
    assert len(committed) > 600
    for values in committed:
        settings = Settings.from_dict(values["settings"])
        assert settings.id == values["id"]
        assert settings.to_dict() == values["settings"]


@pytest.mark.parametrize(("base", "name"), [(Settings, "Settings"), (Finetune, "Finetune")])
def test_a_new_setting_is_declared_in_one_place(base, name, monkeypatch):
    """One more field, of a run or of a repair, reaches the checks, the records, the command line and the plans."""
    before = resolve("seq-digits", "sgd", {"repair": "fpf"})[0]
    values, identity = before.to_dict(), before.id

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Widened(base):
        warmup: int = setting(0, "Steps until the full learning rate.", least=0)

    monkeypatch.setattr(settings_module, name, Widened)

    settings, sources = resolve("seq-digits", "sgd", {"repair": "fpf", "warmup": 5})
    assert sources["warmup"] == "given"
    with pytest.raises(ValueError, match="warmup is -1; it must be a whole number of 0 or more"):
        resolve("seq-digits", "sgd", {"repair": "fpf", "warmup": -1})

    assert settings.to_dict() == {**values, "warmup": 5}
    assert settings_module.Settings.from_dict(settings.to_dict()) == settings
    assert resolve("seq-digits", "sgd", {"repair": "fpf", "warmup": 0})[0].id == identity != settings.id

    def command(**given):
        assert parse_options(given, settings_except(())) == {"warmup": 7}

    app = typer.Typer()
    app.command()(with_options(settings_except(()))(command))
    shown = CliRunner().invoke(app, ["--help"]).output
    assert re.search(r"--warmup .*Steps until the full learning rate\.", shown)
    assert CliRunner().invoke(app, ["--warmup", "7"]).exit_code == 0

    runs = expand_plan({"stream": "seq-digits", "method": "sgd", "repair": "fpf", "warmup": [1, 2]})
    assert [one.settings.to_dict()["warmup"] for one in runs] == [1, 2]
