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
