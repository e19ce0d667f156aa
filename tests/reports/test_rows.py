import csv
import dataclasses

import pytest

from forgetless.experiments.record import agreeing
from forgetless.reports import page
from forgetless.reports.rows import (
    Row,
    best_first,
    best_rows,
    cells,
    csv_table,
    latex_table,
    pareto_front,
    profile_row,
    table_rows,
)


def test_rows_are_mean_and_deviation_over_seeds(records):
    first, second = (dataclasses.replace(records[0], accuracy=value) for value in (60.0, 64.0))
    (row,) = table_rows([first, second])
    assert row.accuracy == 62.0
    assert row.std == pytest.approx(2.8284, abs=1e-3)
    assert cells(row)[:2] == ["sgd", "62.0 ± 2.8"]
    assert cells(table_rows([first])[0])[1] == "60.0"


def test_other_settings_make_another_row(records):
    sgd = records[0]
    other = dataclasses.replace(sgd, settings={**sgd.settings, "buffer": 7, "seed": 5}, accuracy=10.0)
    again = dataclasses.replace(sgd, settings={**sgd.settings, "seed": 9}, accuracy=sgd.accuracy + 2)
    first, second = table_rows([sgd, other, again])
    assert (first.label, second.label) == (f"sgd, buffer {sgd.settings['buffer']}", "sgd, buffer 7")
    assert first.accuracy == pytest.approx(sgd.accuracy + 1)
    assert second.accuracy == 10.0


def test_a_label_names_a_switch_without_its_value(records):
    sgd = records[0]
    other = dataclasses.replace(sgd, settings={**sgd.settings, "anytime": True})
    assert [row.label for row in table_rows([sgd, other])] == ["sgd", "sgd, anytime"]


def test_records_are_sorted_by_accuracy_then_seed(records):
    sgd = dataclasses.replace(records[0], accuracy=10.0)
    second, first = (
        dataclasses.replace(sgd, settings={**sgd.settings, "buffer": 7, "seed": seed}, accuracy=60.0) for seed in (3, 1)
    )
    elsewhere = dataclasses.replace(sgd, settings={**sgd.settings, "stream": "a"}, accuracy=99.0)
    assert best_first([sgd, second, elsewhere, first]) == [first, second, sgd, elsewhere]


def test_the_csv_table_has_every_row_with_its_records(records):
    lines = list(csv.DictReader(csv_table(records).splitlines()))
    assert [line["method"] for line in lines] == [row.label for row in table_rows(records)]
    assert float(lines[0]["accuracy"]) == pytest.approx((records[0].accuracy + records[1].accuracy) / 2)
    assert lines[0]["records"] == f"{records[0].id} {records[1].id}"
    assert int(lines[0]["flops"]) == sum(records[0].flops.values())


def test_the_latex_table_marks_the_best_and_escapes_names(records):
    first = dataclasses.replace(records[0], accuracy=60.0, label="a_b")
    second = dataclasses.replace(first, settings={**first.settings, "lr": 9.0}, accuracy=64.5)
    lines = latex_table([first, second]).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrr}"
    assert [line.split(" & ")[1] for line in lines if "b, lr" in line] == ["$60.00$", r"$\mathbf{64.50}$"]
    assert r"a\_b, lr 9.0" in lines[-3]
    assert lines[-1] == r"\end{tabular}"


def test_no_row_beats_the_front_in_accuracy_and_cost(records):
    by_name = {}
    for name, flops, accuracy in (("cheap", 1, 30.0), ("worse", 2, 20.0), ("good", 3, 70.0), ("dear", 9, 69.0)):
        by_name[name] = dataclasses.replace(records[0], label=name, flops={"train": flops}, accuracy=accuracy)
    rows = [Row(name, (record,)) for name, record in by_name.items()]
    assert [row.label for row in pareto_front(rows)] == ["cheap", "good"]
    joint = dataclasses.replace(records[-1], flops={"train": 1}, accuracy=99.0)
    assert [row.label for row in pareto_front([*rows, Row("joint", (joint,))])] == ["cheap", "good"]
    assert [row.label for row in best_rows([*rows, Row("joint", (joint,))])] == ["good"]
    held_out = dataclasses.replace(records[0], accuracy=98.0, settings={**records[0].settings, "validation": True})
    validated = Row("good, on validation", (held_out,))
    assert best_rows([*rows, validated]) == best_rows(rows)
    assert validated not in pareto_front([*rows, validated])
    assert best_rows([validated]) == pareto_front([validated]) == [validated]


def test_validation_is_labelled_and_mismatched_records_are_skipped(records):
    first = records[0]
    held_out = dataclasses.replace(first, settings={**first.settings, "validation": True})
    assert [row.label for row in table_rows([first, held_out])] == ["sgd", "sgd, on validation"]
    other = dataclasses.replace(
        first, id="0123456789ab", settings={**first.settings, "seed": 9}, accuracy_matrix=[[1.0, 2.0]]
    )
    text = (
        f"0123456789ab: the records {first.id} and 0123456789ab have the same settings but for the seed, and other "
        "tasks or groups of parameters: one is of code that was changed since; remove it"
    )
    assert agreeing([first, other, held_out, records[1]]) == ([first, held_out, records[1]], [text])
    second = dataclasses.replace(first, id="fedcba987654", settings={**first.settings, "seed": 8})
    kept, (problem,) = agreeing([other, first, second])  # that which comes first is the stale one
    assert kept == [first, second]
    assert problem.startswith("0123456789ab: ")


def test_labels_tell_1_from_1_0(records):
    ways = []
    for alpha in (1, 1.0):
        settings = {**records[0].settings, "options": {"alpha": alpha}}
        ways.append(dataclasses.replace(records[0], settings=settings))
    assert [row.label for row in table_rows(ways)] == ["sgd, alpha 1", "sgd, alpha 1.0"]


def test_labels_differ_only_within_a_stream(records):
    other = dataclasses.replace(records[0], settings={**records[0].settings, "stream": "seq-mnist", "buffer": 7})
    lines = [line.split(",")[:2] for line in csv_table([records[0], other]).splitlines()]
    assert lines[1:] == [["seq-digits", "sgd"], ["seq-mnist", "sgd"]]


def test_the_profile_prefers_rows_without_finetuning_during_training(records):
    """S_g of k-FPF has in it what its finetunings moved."""

    def row(label, repair, **scores):
        record = dataclasses.replace(
            records[0], settings={**records[0].settings, "repair": repair}, sensitivity=dict(scores)
        )
        return Row(label, (record,))

    often, er, sgd = row("k-fpf-ce", "k-fpf", fc=2.9), row("er", "none", fc=1.8), row("sgd, lr 0.1", "none", fc=1.9)
    assert profile_row([often, er, sgd]) is sgd
    assert profile_row([often, er]) is er
    assert profile_row([row("gdumb", "none"), often]) is often
    assert profile_row([]) is None
    sentence = "It includes what finetuning moved."
    assert [sentence in page.html(list(row.records), "", {}) for row in (often, er)] == [True, False]
