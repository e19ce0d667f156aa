import csv
import dataclasses
import re

import pytest

from forgetless import build, report
from forgetless.config import resolve


@pytest.fixture(scope="module")
def records():
    quick = {"epochs": 1, "batch": 50, "replay": 50, "steps": 5}
    found = []
    for method, way in (("sgd", {}), ("er", {"repair": "fpf"}), ("joint", {})):
        given = {**quick, **way}
        if not way:
            del given["steps"]
        found += [build.run(resolve("seq-digits", method, {**given, "seed": seed})[0]) for seed in (0, 1)]
    return found


def test_rows_are_mean_and_deviation_over_seeds(records):
    one, two = (dataclasses.replace(records[0], accuracy=value) for value in (60.0, 64.0))
    (row,) = report.rows([one, two])
    assert row.accuracy == 62.0
    assert row.spread == pytest.approx(2.8284, abs=1e-3)
    assert report.cells(row)[:2] == ["sgd", "62.0 ± 2.8"]
    assert report.cells(report.rows([one])[0])[1] == "60.0"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (5, "5"), (1300, "1.3 k"), (6.58e8, "658 M"), (1.67e16, "16.7 P")]
)
def test_large_numbers_have_a_prefix(value, text):
    assert report.si(value) == text


def test_the_page_is_whole_and_needs_nothing_else(records):
    page = report.page(records, "A <title>")
    assert "A &lt;title&gt;" in page
    assert len(re.findall("<svg", page)) == 3
    assert page.count("<svg") == page.count("</svg>")
    assert not re.findall(r"(?:src|href)=", page)
    assert "http" not in page
    for row in report.rows(records):
        assert f"{row.accuracy:.1f}" in page
        assert all(record.id in page for record in row.records)


def test_labels_keep_a_distance():
    placed = report._spread([(0.0, 100.0), (5.0, 101.0), (0.0, 50.0), (0.0, 100.5), (500.0, 100.0)])
    assert placed[0] == placed[4] == 100.0  # the last one is far to the side
    assert placed[2] == 50.0
    assert sorted(placed[:2] + placed[3:4]) == [100.0, 113.5, 127.0]


def test_ways_that_differ_in_more_than_the_seed_are_rows_of_their_own(records):
    sgd = records[0]
    other = dataclasses.replace(sgd, settings={**sgd.settings, "buffer": 7, "seed": 5}, accuracy=10.0)
    again = dataclasses.replace(sgd, settings={**sgd.settings, "seed": 9}, accuracy=sgd.accuracy + 2)
    first, second = report.rows([sgd, other, again])
    assert (first.label, second.label) == (f"sgd, buffer {sgd.settings['buffer']}", "sgd, buffer 7")
    assert first.accuracy == pytest.approx(sgd.accuracy + 1)
    assert second.accuracy == 10.0


def test_the_table_has_a_line_for_each_row_with_its_records(records):
    lines = list(csv.DictReader(report.table(records).splitlines()))
    assert [line["method"] for line in lines] == [row.label for row in report.rows(records)]
    assert float(lines[0]["accuracy"]) == pytest.approx((records[0].accuracy + records[1].accuracy) / 2)
    assert lines[0]["records"] == f"{records[0].id} {records[1].id}"
    assert int(lines[0]["flops"]) == sum(records[0].flops.values())
