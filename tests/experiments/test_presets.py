import json
from pathlib import Path

import pytest

from forgetless.config import catalogue
from forgetless.experiments import record
from forgetless.experiments.presets import preset, preset_table
from forgetless.experiments.settings import resolve
from forgetless.paper.reproduce import parse_label

RESULTS = Path(__file__).parents[2] / "results"


def test_every_name_in_the_presets_is_known():
    by_stream = ("borrowed", "mir_candidates", "grids", "repair_by_stream", "searched", "searched_for")
    for name in ("der_authors", "method_authors", *by_stream):
        assert set(preset_table(name)) <= set(catalogue.STREAMS)
    assert set(preset_table("stream_defaults")) == set(catalogue.STREAMS)
    authors = [methods for name in ("der_authors", "method_authors") for methods in preset_table(name).values()]
    for methods in (preset_table("repair_by_method"), *authors):
        assert set(methods) <= set(catalogue.METHODS)
    assert set(preset_table("borrowed").values()) <= set(preset_table("der_authors"))


def test_the_der_authors_settings_by_buffer():
    found = preset("seq-cifar10", "derpp", "none", 500)
    assert found["alpha"] == (0.2, "DER authors, seq-cifar10, buffer 500")
    assert preset("seq-cifar10", "derpp", "none", 200)["alpha"] == (0.1, "DER authors, seq-cifar10, buffer 200")
    assert preset("seq-cifar10", "derpp", "none", 5120)["alpha"][0] == 0.2
    assert found["lr"] == (0.03, "DER authors, seq-cifar10")
    assert found["epochs"] == (5, "default of seq-cifar10")


def test_a_stream_without_settings_borrows_and_says_so():
    assert preset("seq-organamnist", "er", "none", 500)["lr"] == (0.1, "DER authors, seq-cifar10")
    assert preset("seq-pacs", "cls_er", "none", 500)["lr"] == (0.05, "authors of cls_er, seq-tinyimagenet")


def test_star_starts_from_the_settings_of_derpp():
    found, other = (preset("seq-tinyimagenet", method, "none", 200) for method in ("star", "derpp"))
    assert found == other
    assert found["beta"] == (1.0, "DER authors, seq-tinyimagenet, buffer 200")
    assert preset("seq-cifar10", "star", "none", 200)["beta"] == (0.1, "authors of star, seq-cifar10")


@pytest.mark.parametrize("stream", list(preset_table("method_authors")))
def test_settings_of_a_methods_authors_are_valid(stream):
    for method in preset_table("method_authors")[stream]:
        for buffer in (200, 500):
            settings, _ = resolve(stream, method, {"buffer": buffer})
            assert settings.method == method


def test_repairs_start_from_the_papers_steps_and_thresholds():
    once = preset("seq-tinyimagenet", "der", "fpf", 500)
    assert (once["steps"][0], once["threshold"][0]) == (300, 1.0)
    often = preset("seq-tinyimagenet", "der", "k-fpf", 500)
    assert (often["steps"][0], often["threshold"][0]) == (100, 0.3)


def test_k_fpf_around_masked_distils_and_repairs_often():
    found = preset("seq-cifar10", "masked", "k-fpf", 500)
    assert {name: found[name][0] for name in ("lr", "ft_lr", "every", "steps", "threshold", "kd")} == {
        "lr": 0.03, "ft_lr": 0.03, "every": 100, "steps": 100, "threshold": 0.1, "kd": 0.2,
    }  # fmt: skip
    assert found["threshold"][1] == "k-fpf around masked"
    assert found["every"][1] == "searched on validation, k-fpf+masked, buffer 500"
    assert preset("seq-mnist", "masked", "k-fpf", 500)["kd"] == (0.1, "k-fpf around masked")
    source = "searched on validation, k-fpf+masked"
    assert preset("seq-tinyimagenet", "masked", "k-fpf", 200)["policy"] == ("balanced", source)
    assert "kd" not in preset("seq-cifar10", "masked", "fpf", 500)
    assert resolve("seq-cifar10", "masked", {"repair": "k-fpf"})[0].label == "k-fpf-kd+masked"
    assert resolve("seq-cifar10", "masked", {"repair": "k-fpf", "kd": 0.0})[0].label == "k-fpf-ce+masked"


@pytest.mark.parametrize("stream", list(preset_table("grids")))
def test_the_papers_grids_are_complete(stream):
    fpf, k_fpf = (preset_table("grids")[stream][repair] for repair in ("fpf", "k-fpf"))
    assert set(k_fpf) == {"lr", "ft_lr", "kd"}
    sizes = {"seq-organamnist": (5, 4, 4, 4), "seq-pathmnist": (5, 3, 5, 4), "seq-cifar10": (5, 3, 4, 3),
             "seq-tinyimagenet": (5, 3, 3, 3), "seq-pacs": (7, 3, 4, 4)}  # fmt: skip
    assert (len(fpf["ft_lr"]), len(k_fpf["lr"]), len(k_fpf["ft_lr"]), len(k_fpf["kd"])) == sizes[stream]


def test_searched_settings_match_the_committed_search():
    best = json.loads((RESULTS / "searches" / "seq-mnist-500.json").read_text())["best"]
    assert preset_table("searched")["seq-mnist"] == {row: {"batch": 10, **point} for row, point in best.items()}
    value, source = preset("seq-mnist", "er", "fpf", 500)["ft_lr"]
    assert value == best["fpf+er"]["ft_lr"]
    assert source == "searched on validation, fpf+er"


@pytest.mark.parametrize("made", record.read_lines(RESULTS / "seq-mnist.jsonl"), ids=lambda made: made.id)
def test_every_committed_record_is_repeated_by_its_command(made):
    """`forgetless run STREAM METHOD [--fpf | --k-fpf] --buffer 500 --seed S` has the settings of the record."""
    given = {"buffer": 500, "seed": made.settings["seed"]}
    if made.settings["repair"] != "none":
        given["repair"] = made.settings["repair"]
    assert resolve(made.settings["stream"], made.settings["method"], given)[0].id == made.id


def test_another_network_has_presets_of_its_own():
    assert preset("seq-cifar10", "er", "fpf", 500, network="vgg11")["lr"] == (
        0.01,
        "searched on validation, er with vgg11",
    )
    assert preset("seq-cifar10", "er", "fpf", 500, network="resnet18")["lr"][0] == 0.1
    assert resolve("seq-cifar10", "sgd", {"network": "vgg11", "repair": "k-fpf"})[0].finetune.lr == 0.01
    chosen = json.loads((RESULTS / "searches" / "seq-cifar10-vgg11-500.json").read_text())["rows"]
    for row, own in chosen.items():
        repair, _, method = row.rpartition("+")
        settings = (
            parse_label(row, "seq-cifar10") if row == "k-fpf-ce" else (method, {"repair": repair} if repair else {})
        )
        made = resolve("seq-cifar10", settings[0], {"network": "vgg11", **settings[1]})[0].to_dict()
        if row != "fpf+icarl":  # with the best all final runs diverged
            assert own["chosen"].items() <= (made | made["options"]).items()
