import csv
import dataclasses

import pytest

from forgetless.experiments.record import agreeing
from forgetless.reports import page
from forgetless.reports import rows as report


def test_rows_are_mean_and_deviation_over_seeds(records):
    one, two = (dataclasses.replace(records[0], accuracy=value) for value in (60.0, 64.0))
    (row,) = report.rows([one, two])
    assert row.accuracy == 62.0
    assert row.spread == pytest.approx(2.8284, abs=1e-3)
    assert report.cells(row)[:2] == ["sgd", "62.0 ± 2.8"]
    assert report.cells(report.rows([one])[0])[1] == "60.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (5, "5"),
        (1300, "1.3 k"),
        (6.58e8, "658 M"),
        (1.67e16, "16.7 P"),
        (999_600, "1 M"),
        (0.02, "0.02"),
        (1e18, "1 E"),
    ],
)
def test_large_numbers_have_a_prefix(value, text):
    assert report.si(value) == text


def test_ways_that_differ_in_more_than_the_seed_are_rows_of_their_own(records):
    sgd = records[0]
    other = dataclasses.replace(sgd, settings={**sgd.settings, "buffer": 7, "seed": 5}, accuracy=10.0)
    again = dataclasses.replace(sgd, settings={**sgd.settings, "seed": 9}, accuracy=sgd.accuracy + 2)
    first, second = report.rows([sgd, other, again])
    assert (first.label, second.label) == (f"sgd, buffer {sgd.settings['buffer']}", "sgd, buffer 7")
    assert first.accuracy == pytest.approx(sgd.accuracy + 1)
    assert second.accuracy == 10.0


def test_a_switch_that_is_on_is_named_alone(records):
    sgd = records[0]
    other = dataclasses.replace(sgd, settings={**sgd.settings, "anytime": True})
    assert [row.label for row in report.rows([sgd, other])] == ["sgd", "sgd, anytime"]


def test_records_can_be_put_in_order_the_best_way_first_and_its_seeds_counting_up(records):
    sgd = dataclasses.replace(records[0], accuracy=10.0)
    second, first = (
        dataclasses.replace(sgd, settings={**sgd.settings, "buffer": 7, "seed": seed}, accuracy=60.0) for seed in (3, 1)
    )
    elsewhere = dataclasses.replace(sgd, settings={**sgd.settings, "stream": "a"}, accuracy=99.0)
    assert report.best_first([sgd, second, elsewhere, first]) == [first, second, sgd, elsewhere]


def test_the_table_has_a_line_for_each_row_with_its_records(records):
    lines = list(csv.DictReader(report.table(records).splitlines()))
    assert [line["method"] for line in lines] == [row.label for row in report.rows(records)]
    assert float(lines[0]["accuracy"]) == pytest.approx((records[0].accuracy + records[1].accuracy) / 2)
    assert lines[0]["records"] == f"{records[0].id} {records[1].id}"
    assert int(lines[0]["flops"]) == sum(records[0].flops.values())


def test_the_latex_table_has_the_best_of_each_stream_in_bold_and_escapes_names(records):
    one = dataclasses.replace(records[0], accuracy=60.0, label="a_b")
    two = dataclasses.replace(one, settings={**one.settings, "lr": 9.0}, accuracy=64.5)
    lines = report.latex([one, two]).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrr}"
    assert [line.split(" & ")[1] for line in lines if "b, lr" in line] == ["$60.00$", r"$\mathbf{64.50}$"]
    assert r"a\_b, lr 9.0" in lines[-3]
    assert lines[-1] == r"\end{tabular}"


def test_the_front_has_those_no_other_beats_in_both(records):
    made = {}
    for name, flops, accuracy in (("cheap", 1, 30.0), ("worse", 2, 20.0), ("good", 3, 70.0), ("dear", 9, 69.0)):
        made[name] = dataclasses.replace(records[0], label=name, flops={"train": flops}, accuracy=accuracy)
    rows = [report.Row(name, (one,)) for name, one in made.items()]
    assert [row.label for row in report.front(rows)] == ["cheap", "good"]
    joint = dataclasses.replace(records[-1], flops={"train": 1}, accuracy=99.0)
    assert [row.label for row in report.front([*rows, report.Row("joint", (joint,))])] == ["cheap", "good"]
    assert [row.label for row in report.best([*rows, report.Row("joint", (joint,))])] == ["good"]
    held_out = dataclasses.replace(records[0], accuracy=98.0, settings={**records[0].settings, "validation": True})
    validated = report.Row("good, on validation", (held_out,))
    assert report.best([*rows, validated]) == report.best(rows)
    assert validated not in report.front([*rows, validated])
    assert report.best([validated]) == report.front([validated]) == [validated]


def test_records_on_validation_say_so_and_those_of_other_code_are_not_mixed(records):
    first = records[0]
    held_out = dataclasses.replace(first, settings={**first.settings, "validation": True})
    assert [row.label for row in report.rows([first, held_out])] == ["sgd", "sgd, on validation"]
    other = dataclasses.replace(
        first, id="0123456789ab", settings={**first.settings, "seed": 9}, accuracy_matrix=[[1.0, 2.0]]
    )
    with pytest.raises(ValueError, match=f"the records {first.id} and 0123456789ab have the same settings"):
        report.rows([first, other])
    text = (
        f"0123456789ab: the records {first.id} and 0123456789ab have the same settings but for the seed, and other "
        "tasks or groups of parameters: one is of code that was changed since; remove it"
    )
    assert agreeing([first, other, held_out, records[1]]) == ([first, held_out, records[1]], [text])
    second = dataclasses.replace(first, id="fedcba987654", settings={**first.settings, "seed": 8})
    kept, (problem,) = agreeing([other, first, second])  # that which comes first is the stale one
    assert kept == [first, second]
    assert problem.startswith("0123456789ab: ")


def test_ways_that_differ_in_how_a_number_is_written_have_labels_of_their_own(records):
    ways = []
    for alpha in (1, 1.0):
        settings = {**records[0].settings, "options": {"alpha": alpha}}
        ways.append(dataclasses.replace(records[0], settings=settings))
    assert [row.label for row in report.rows(ways)] == ["sgd, alpha 1", "sgd, alpha 1.0"]


def test_rows_of_a_table_are_named_within_their_stream(records):
    other = dataclasses.replace(records[0], settings={**records[0].settings, "stream": "seq-mnist", "buffer": 7})
    lines = [line.split(",")[:2] for line in report.table([records[0], other]).splitlines()]
    assert lines[1:] == [["seq-digits", "sgd"], ["seq-mnist", "sgd"]]


def test_the_profile_is_of_a_row_that_was_not_finetuned_on_the_way(records):
    """S_g of k-FPF has in it what its finetunings moved."""

    def row(label, repair, **scores):
        made = dataclasses.replace(
            records[0], settings={**records[0].settings, "repair": repair}, sensitivity=dict(scores)
        )
        return report.Row(label, (made,))

    often, er, sgd = row("k-fpf-ce", "k-fpf", fc=2.9), row("er", "none", fc=1.8), row("sgd, lr 0.1", "none", fc=1.9)
    assert report.profiled([often, er, sgd]) is sgd
    assert report.profiled([often, er]) is er
    assert report.profiled([row("gdumb", "none"), often]) is often
    assert report.profiled([]) is None
    said = "What its finetunings moved is part of it."
    assert [said in page.html(list(one.records), "", {}) for one in (often, er)] == [True, False]
