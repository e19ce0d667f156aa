import dataclasses
import sys

import pytest

from forgetless.reports import charts as figures
from forgetless.reports import rows as report


def test_figures_of_records_are_files_of_every_format_and_the_same_each_time(records, tmp_path):
    made = figures.of_records(records, tmp_path / "a")
    names = {"anytime", "cost", "profile", "dynamics", "matrix"}
    assert {file.name for file in made} == {f"{name}.{kind}" for name in names for kind in figures.FORMATS}
    assert all(file.stat().st_size > 1000 for file in made)
    again = figures.of_records(records, tmp_path / "b", ["png"])
    for file in again:
        assert file.read_bytes() == (tmp_path / "a" / file.name).read_bytes()


def test_streams_are_told_apart_in_the_names(records, tmp_path):
    other = dataclasses.replace(records[0], settings={**records[0].settings, "stream": "my:own"})
    made = figures.of_records([records[0], other], tmp_path, ["png"])
    assert {"seq-digits-cost.png", "my-own-cost.png"} <= {file.name for file in made}


def test_a_format_that_is_none_is_refused(records, tmp_path):
    with pytest.raises(ValueError, match="formats has 'gif'; it must be of png, svg, pdf"):
        figures.of_records(records, tmp_path, ["gif"])


def test_the_points_drawn_are_the_rows(records):
    found = report.rows(records)
    axes = figures.cost(found).axes[0]
    drawn = {container.get_label(): container.lines[0].get_xydata()[0].tolist() for container in axes.containers}
    assert drawn == {row.label: pytest.approx([row.tflops, row.accuracy]) for row in found}
    lines = figures.anytime([found[0]]).axes[0].lines
    assert lines[0].get_ydata().tolist() == found[0].anytime


def test_dynamics_mark_tasks_and_what_was_detected(records):
    changes = [[task, epoch, {"fc1": 0.1, "fc2": 0.01}] for task in (1, 2) for epoch in (1, 2)]
    made = dataclasses.replace(records[0], epoch_changes=changes, boundaries=[2])
    axes = figures.dynamics(made, "x").axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1, 2, 3, 4]] * 2
    assert list(axes.lines[2].get_xdata()) == [3, 3]  # the second task begins with the third epoch
    assert list(axes.lines[3].get_xdata()) == [3]
    assert axes.get_yscale() == "log"


def test_what_is_finetuned_is_scaled_and_the_best_has_a_star():
    parts = {"FPF": [("fc", 50.0, 2.0, 10.0), ("bn+fc", 60.0, 4.0, 20.0)], "k-FPF": [("fc", 40.0, 1.0, 10.0)]}
    picture = figures.choices(parts, "digits")
    bars = [bar.get_height() for bar in picture.axes[0].patches]
    assert bars == [0.5, 1.0, 0.5, 1.0]
    star = picture.axes[2].lines[1]
    assert star.get_xydata().tolist() == [[1.0, 60.0]]


def test_paper_and_ours_are_bars_side_by_side():
    axes = figures.paired([("er", (60.0, 1.0), (58.0, 2.0)), ("der", (70.0, 1.0), (71.0, 0.5))], "t").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [60.0, 70.0, 58.0, 71.0]


def test_histograms_have_a_picture_for_each_layer():
    picture = figures.histograms({"a": ([1.0, 2.0], [3.0, 4.0]), "b": ([1.0], [1.0])}, "t")
    assert [axes.get_title() for axes in picture.axes if axes.get_visible()] == ["a", "b"]


def test_that_there_is_nothing_to_draw_with_is_told_before_anything_is_done(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib: pip install 'forgetless\[plot\]'"):
        figures.check_formats(["png"])
