import dataclasses

from forgetless.reports import svg


def test_dynamics_mark_task_starts_and_detected_shifts(records):
    changes = [[task, epoch, {"fc1": 0.1 / epoch, "fc2": 0.01}] for task in (1, 2, 3) for epoch in (1, 2)]
    drawn = svg.dynamics(dataclasses.replace(records[0], epoch_changes=changes, boundaries=[2]))
    assert drawn.count('class="task"') == 2
    assert drawn.count("<title>detected</title>") == 1
    assert drawn.count("<polyline") == 2


def test_labels_do_not_overlap():
    heights = svg.place_labels([(0.0, 100.0), (5.0, 101.0), (0.0, 50.0), (0.0, 100.5), (500.0, 100.0)])
    assert heights[0] == heights[4] == 100.0  # the last one is far to the side
    assert heights[2] == 50.0
    assert sorted(heights[:2] + heights[3:4]) == [100.0, 113.5, 127.0]
