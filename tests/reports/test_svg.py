import dataclasses

import pytest

from forgetless.reports import svg
from forgetless.reports.rows import Row


def test_dynamics_mark_task_starts_and_detected_shifts(records):
    changes = [[task, epoch, {"fc1": 0.1 / epoch, "fc2": 0.01}] for task in (1, 2, 3) for epoch in (1, 2)]
    drawn = svg.dynamics(dataclasses.replace(records[0], epoch_changes=changes, boundaries=[2]), {1.0: ["FPF"]})
    assert drawn.count('class="task"') == 2
    assert drawn.count("<title>detected</title>") == 1
    assert drawn.count("<polyline") == 2


def test_labels_at_line_ends_are_a_line_apart():
    heights = {"a": 100.0, "b": 50.0, "c": 101.0, "d": 99.0}
    assert svg.place_ends(heights) == {"a": 114.0, "b": 50.0, "c": 129.0, "d": 99.0}
    assert svg.place_ends({"a": 264.0, "b": 263.0}) == {"a": 264.0, "b": 249.0}  # 264 is the lower edge


def test_bars_have_the_colour_of_the_repair_that_chooses_them():
    drawn = svg.profile({"conv1": 0.2, "bn": 7.0, "fc": 0.5}, {0.3: ["k-FPF"], 1.0: ["FPF", "k-FPF"]})
    assert [text.split()[0] for text in drawn.split('<rect class="')[1:]] == ["alone", "fpf", "k-fpf"]
    assert [f">{text}</text>" in drawn for text in ("k-FPF: 0.3", "FPF, k-FPF: 1", "7.00 (bar cut)")] == [True] * 3


def test_labels_of_points_cover_no_label_and_no_mark():
    points = {f"row {i}": (200.0 + i, 150.0) for i in range(8)}
    marks = [*points.values(), (215.0, 165.0)]
    placed = svg.place_labels(points, marks)
    width = 5 * svg.LETTER
    boxes = [(x, y - svg.LINE / 2, x + width, y + svg.LINE / 2) for x, y in placed.values()]
    boxes += [(x - 5, y - 5, x + 5, y + 5) for x, y in marks[-1:]]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [
        (83.1, 94.7, [80, 85, 90, 95]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (93.2, 93.9, [93.2, 93.4, 93.6, 93.8, 94.0]),
        (50, 50, [50, 50.1]),
    ],
)
def test_an_axis_fits_its_values(low, high, numbers):
    assert svg.round_numbers(low, high) == pytest.approx(numbers)


def test_rows_far_below_do_not_squeeze_the_others(records):
    def row(label, accuracy):
        return Row(label, (dataclasses.replace(records[0], label=label, accuracy=accuracy),))

    rows = [row("er", 90.0), row("fpf+er", 94.0), row("sgd", 19.0)]
    drawn = svg.cost(rows, svg.row_styles(rows))
    assert svg.far_below(rows) == {"sgd": 19.0}
    assert "<title>sgd" not in drawn
    assert [f">{level} %</text>" in drawn for level in (0, 88, 90, 94)] == [False, False, True, True]


def test_axes_have_at_least_three_labels(records):
    rows = [Row(str(flops), (dataclasses.replace(records[0], flops={"train": flops}),)) for flops in (14, 47)]
    drawn = svg.cost(rows, svg.row_styles(rows))
    assert [f">{number}</text>" in drawn for number in (15, 20, 30, 50)] == [True] * 4
    matrix = svg.matrix(Row("er", (dataclasses.replace(records[0], accuracy_matrix=[[9.0] * 3] * 3),)))
    ticks = matrix.split('<g class="ticks">')[1]
    assert [ticks.count(f">{task}</text>") for task in (1, 2, 3, 4)] == [2, 2, 2, 0]


def test_colours_mean_the_repair(records):
    labels = ("er", "fpf+er", "k-fpf-ce", "fpf-all+er, lr 0.1", "FPF+ER", "fpf_mine:Method")
    looks = svg.row_styles([Row(label, (records[0],)) for label in labels])
    assert [look.colour.split()[0] for look in looks.values()] == ["alone", "alone", "fpf", "fpf", "fpf", "k-fpf"]
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(labels)


def test_long_labels_lose_the_names_of_settings():
    assert svg._cut("k-fpf-kd, buffer 500, every 200") == "k-fpf-kd, 500, 200"
    assert svg._cut("er, buffer 200") == "er, buffer 200"


def test_the_best_row_of_each_method_is_named_first(records):
    def row(label, accuracy):
        return Row(label, (dataclasses.replace(records[0], accuracy=accuracy),))

    rows = [row(f"er, lr {i}", 60.0 + i) for i in range(12)] + [row("sgd", 20.0)]
    named = [label for label, look in svg.row_styles(rows).items() if look.named]
    assert named == ["er, lr 11", "sgd", *(f"er, lr {i}" for i in range(10, 2, -1))]
