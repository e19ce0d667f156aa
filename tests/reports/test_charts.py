import dataclasses
import sys

import pytest

from forgetless.reports import charts
from forgetless.reports.rows import Row, table_rows
from forgetless.training.metrics import MeanStd


def test_records_are_drawn_in_every_format(records, tmp_path):
    files = charts.draw_records(records, tmp_path)
    names = {"anytime", "cost", "profile", "dynamics", "matrix"}
    assert {file.name for file in files} == {f"{name}.{kind}" for name in names for kind in charts.FORMATS}
    assert all(file.stat().st_size > 1000 for file in files)


def test_the_same_figure_is_the_same_file(records, tmp_path):
    first, second = (charts.save(charts.cost(table_rows(records)), tmp_path, name, ["png"])[0] for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_files_of_several_streams_begin_with_the_stream(records, tmp_path):
    other = dataclasses.replace(records[0], settings={**records[0].settings, "stream": "my:own"})
    files = charts.draw_records([records[0], other], tmp_path, ["svg"])
    assert {"seq-digits-cost.svg", "my-own-cost.svg"} <= {file.name for file in files}


def test_an_unknown_format_is_an_error(records, tmp_path):
    with pytest.raises(ValueError, match="formats has 'gif'; expected png, svg, pdf"):
        charts.draw_records(records, tmp_path, ["gif"])


def test_missing_matplotlib_is_reported_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib: pip install 'forgetless\[plot\]'"):
        charts.check_formats(["png"])


def test_cost_and_anytime_draw_the_rows(records):
    rows = table_rows(records)
    axes = charts.cost(rows).axes[0]
    drawn = {container.get_label(): container.lines[0].get_xydata()[0].tolist() for container in axes.containers}
    assert drawn == {row.label: pytest.approx([row.tflops, row.accuracy]) for row in rows}
    lines = charts.anytime(rows).axes[0].lines
    assert {line.get_label(): line.get_ydata().tolist() for line in lines} == charts.learning_curves(rows)


def test_dynamics_mark_task_starts_and_detected_shifts(records):
    changes = [[task, epoch, {"fc1": 0.1, "fc2": 0.01}] for task in (1, 2) for epoch in (1, 2)]
    record = dataclasses.replace(records[0], epoch_changes=changes, boundaries=[2])
    assert charts.group_changes(record) == charts.GroupChanges(
        {"fc1": [0.1] * 4, "fc2": [0.01] * 4}, starts={0: 1, 2: 2}, detected=[2]
    )
    axes = charts.dynamics(record, "x").axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1, 2, 3, 4]] * 2
    assert list(axes.lines[2].get_xdata()) == [3, 3]  # the second task begins with the third epoch
    assert list(axes.lines[3].get_xdata()) == [3]
    assert axes.get_yscale() == "log"


def test_choices_are_scaled_and_the_best_has_a_star(records):
    def row(label, accuracy, flops, share):
        return Row(label, (dataclasses.replace(records[0], accuracy=accuracy, flops={"train": flops}, share=share),))

    fpf = [row("fc", 50.0, 2, 0.1), row("bn+fc", 60.0, 4, 0.2)]
    figure = charts.choices({"FPF": fpf, "k-FPF": [row("fc", 40.0, 1, 0.1)]}, "digits")
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0.5, 1.0, 0.5, 1.0]
    assert figure.axes[2].lines[1].get_xydata().tolist() == [[1.0, 60.0]]


def test_paper_and_ours_are_bars_side_by_side():
    paper, ours = [MeanStd(60.0, 1.0), MeanStd(70.0, 1.0)], [MeanStd(58.0, 2.0), MeanStd(71.0, 0.5)]
    axes = charts.paired(["er", "der"], paper, ours, "title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [60.0, 70.0, 58.0, 71.0]


def test_histograms_have_one_panel_per_layer():
    layers = {"a": {"within": [1.0, 2.0], "across": [3.0, 4.0]}, "b": {"within": [1.0], "across": [1.0]}}
    figure = charts.histograms(layers, "title")
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ["a", "b"]
