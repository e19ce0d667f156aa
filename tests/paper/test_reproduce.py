import dataclasses
import json
import math
from functools import lru_cache
from pathlib import Path

import pytest

from forgetless.experiments import record
from forgetless.experiments.jobs import Planned
from forgetless.experiments.settings import resolve
from forgetless.paper import reproduce
from forgetless.paper.published import Target
from forgetless.paper.reproduce import Line, Measured, Options
from forgetless.paper.studies import ITEMS


def measured(records, target, accuracies, metric="accuracy"):
    seeds = tuple(dataclasses.replace(records[0], accuracy=value) for value in accuracies)
    return Measured(Line("er", (Planned(*resolve("seq-digits", "er", {})),), target, metric), seeds)


def test_the_difference_is_in_standard_errors(records):
    target = Target("t", "seq-digits", "mlp", 1, 500, "er", "", "accuracy", 60.0, 2.0)
    entry = measured(records, target, [57.0, 59.0])
    assert entry.mean == 58.0
    assert entry.values.std == pytest.approx(math.sqrt(2))
    assert entry.difference == -2.0
    assert entry.standard_errors == pytest.approx(-2 / math.sqrt(4 / 5 + 2 / 2))
    assert measured(records, target, [57.0]).standard_errors is None
    assert measured(records, None, [57.0, 59.0]).difference is None


def test_metrics_are_read_from_records(records):
    outcome = dataclasses.replace(records[0], anytime=[90.0, 70.0], flops={"train": 3 * 10**12, "finetune": 10**12})
    assert reproduce.metric_value(outcome, "accuracy") == outcome.accuracy
    assert reproduce.metric_value(outcome, "accuracy_after_task_2") == 70.0
    assert reproduce.metric_value(outcome, "finetune_tflops") == 1.0
    assert reproduce.metric_value(outcome, "train_tflops") == 4.0


@pytest.mark.parametrize(
    ("label", "method", "given"),
    [
        ("er", "er", {}),
        ("fpf+derpp", "derpp", {"repair": "fpf"}),
        ("fpf-all+er", "er", {"repair": "fpf", "groups": "all"}),
        ("k-fpf-ce", "sgd", {"repair": "k-fpf"}),
        ("k-fpf-all-ce", "sgd", {"repair": "k-fpf", "groups": "all"}),
        ("k-fpf-kd", "sgd", {"repair": "k-fpf", "kd": 0.05}),
        ("k-fpf-ce+er", "er", {"repair": "k-fpf"}),
        ("k-fpf-all-kd+masked", "masked", {"repair": "k-fpf", "groups": "all", "kd": 0.2}),
    ],
)
def test_labels_parse_to_runs_with_that_label(label, method, given):
    assert reproduce.parse_label(label, "seq-cifar10") == (method, given)
    assert resolve("seq-cifar10", method, given)[0].label == label


def test_steps_of_a_run_count_training_and_finetuning():
    given = {"repair": "k-fpf", "every": 1500, "steps": 100, "epochs": 5, "batch": 32}
    settings, _ = resolve("seq-pathmnist", "sgd", given)
    assert reproduce.stream_steps("seq-pathmnist") == 14_075  # those of its records; the paper's k = 9 at τ = 1500
    assert reproduce.training_steps(settings) == 14_075 + (9 + 1) * 100

    assert reproduce.stream_steps("seq-pacs") == 1260  # likewise


def test_lines_share_runs_of_the_same_seed():
    runs = reproduce.plan_runs("seq-digits", "er", {"buffer": 100}, Options(quick=True))
    assert [run.settings.seed for run in runs] == [0, 1]
    assert len(reproduce.plan_runs("seq-digits", "er", {}, Options())) == 5
    assert reproduce.runs([Line("a", runs), Line("b", runs, metric="train_tflops")]) == list(runs)


def test_the_outcome_is_plain_data(records):
    target = Target("t", "seq-digits", "mlp", 1, 500, "er", "", "accuracy", 60.0, 2.0)
    entry = measured(records, target, [57.0, 59.0])
    outcome = reproduce.to_dict("table1", [entry], [reproduce.Finding("it works", True, "1 of 1")], ["quick"])
    assert outcome["lines"][0]["paper"] == [60.0, 2.0]
    assert outcome["lines"][0]["ours"] == [58.0, 1.414]
    assert outcome["lines"][0]["difference"] == -2.0
    assert outcome["findings"] == [{"claim": "it works", "holds": True, "numbers": "1 of 1"}]
    assert str(reproduce.Finding("it works", False, "0 of 1")) == "does not hold: it works (0 of 1)"


@lru_cache
def studied():
    """Return the ids of all runs of the further tables and figures."""
    items = ("many-epochs", "fpf-all", "freeze", "parameters", "k-tau", "buffer-epochs", "dynamics")
    lines = [line for item in items for line in ITEMS[item].lines(Options(device="cuda"))]
    return {run.settings.id for run in reproduce.runs(lines)}


RESULTS = Path(__file__).parents[2] / "results"
RECORDS = [
    pytest.param(file.stem, committed, id=f"{file.stem}-{committed.id}")
    for file in sorted(RESULTS.glob("*.jsonl"))
    if file.stem != "seq-mnist"  # whose records tests/experiments/test_presets.py repeats
    for committed in record.read_lines(file)
]


@pytest.mark.parametrize(("column", "committed"), RECORDS)
def test_reproduce_runs_what_committed_records_are_of(column, committed):
    """The ids are hashes of all settings, so the command of a row runs what its record says."""
    if (
        committed.settings["method"] == "masked"
    ):  # which the paper does not have: `forgetless run STREAM masked --k-fpf`
        given = {name: committed.settings[name] for name in ("buffer", "seed", "repair", "device")}
        assert committed.id == resolve(committed.settings["stream"], "masked", given)[0].id
        return
    if column == "rot-mnist" and committed.settings["repair"] == "none":  # `forgetless run STREAM METHOD`
        given = {name: committed.settings[name] for name in ("buffer", "seed")}
        assert committed.id == resolve(committed.settings["stream"], committed.settings["method"], given)[0].id
        return
    if column == "studies":
        assert committed.id in studied()
        return
    if committed.settings["network"] == "vgg11":
        lines = ITEMS["mlp-vgg"].lines(Options("seq-cifar10", 500, (committed.label,), device="cuda"))
        assert committed.id in {run.settings.id for line in lines for run in line.runs}
        return
    chosen = RESULTS / "searches" / f"{committed.settings['stream']}-{committed.settings['buffer']}.json"
    denser = json.loads(chosen.read_text())["rows"].get("k-fpf-dense", {}).get("chosen")
    if denser and denser.items() <= committed.settings.items():
        return  # the paper does not have k-FPF with more finetuning either
    device = committed.settings["device"]
    options = Options(committed.settings["stream"], committed.settings["buffer"], (committed.label,), device=device)
    item = "many-epochs" if options.stream == "rot-mnist" else "table1"
    lines = ITEMS["anytime" if committed.settings.get("anytime") else item].lines(options)
    assert committed.id in {run.settings.id for line in lines for run in line.runs}


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("seq-cifar10", "class"), ("forgetless.data.benchmarks:large_digits", "class"), ("seq-pacs", "domain"),
        ("rot-mnist", "domain"), ("forgetless.data.benchmarks:rot_mnist", "domain"), ("mine:seq_pacs", None),
    ],
)  # fmt: skip
def test_the_scenario_is_known_without_loading_the_stream(stream, expected):
    assert reproduce.scenario(stream) == expected
