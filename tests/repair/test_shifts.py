import math
from statistics import median

import torch

from forgetless.repair.shifts import Detector, boundaries


def rows(*values):
    return [[value, 2 * value, 3 * value] for value in values]


def test_a_jump_of_the_changes_marks_a_boundary():
    assert boundaries(rows(9, 3, 2, 2, 8, 3, 2, 2, 7)) == [4, 8]


def test_noise_of_a_converged_network_is_no_boundary():
    # 0.3 is three times the windows before it, but far below what a new task moves.
    assert boundaries(rows(9, 1, 0.1, 0.1, 0.1, 0.3, 0.1)) == []
    assert boundaries(rows(9, 1, 0.1, 0.1, 0.1, 0.3, 0.1), floor=0) == [5]


def test_one_tensor_alone_marks_no_boundary():
    assert boundaries([[1.0, 1.0, 1.0]] * 4 + [[1.0, 1.0, 50.0]]) == []


def test_a_task_must_settle_before_the_next_boundary():
    assert boundaries(rows(9, 1, 1, 1, 9, 1, 9)) == [4]
    assert boundaries(rows(9, 1, 9), settle=2) == []
    assert boundaries(rows(4, 1, 9), settle=2) == [2]


def test_windows_in_which_nothing_moved_do_not_count():
    assert boundaries(rows(1, 0, 0, 0, 1, 0, 1)) == []
    assert boundaries(rows(9, 0, 3, 0, 2, 2, 0, 8)) == [7]
    assert boundaries(rows(0, 0, 0, 0, 0)) == []


def test_a_frozen_tensor_hides_no_shift():
    settled = [[9.0, 9.0, 9.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert boundaries([*settled, [8.0, 0.0, 0.0]]) == [4]  # frozen where the data shifts
    assert boundaries([*settled, [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [8.0, 0.0, 0.0]]) == [6]


def test_a_window_that_is_not_finite_does_not_count():
    assert boundaries(rows(9, 1, 1, math.nan, 1, math.inf, 8)) == [6]


def defined(rows, settle=3, jump=2.0, floor=0.3):
    """The windows that begin a task, from the whole history of each task."""
    begins, task = [], []
    for window, row in enumerate(rows):
        if len(task) >= settle:
            recent = median(row[i] / max(past[i] for past in task[-settle:]) for i in range(len(row)))
            highest = median(row[i] / max(past[i] for past in task) for i in range(len(row)))
            if recent > jump and highest > floor:
                begins.append(window)
                task = []
        task.append(row)
    return begins


def test_boundaries_follow_their_definition():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        rows = torch.rand(40, 3, generator=generator).pow(3).tolist()
        assert boundaries(rows) == defined(rows)


def test_a_restarted_detector_must_settle_again():
    detector = Detector()
    assert not any(detector.see([value]) for value in (9.0, 1.0, 1.0, 1.0))
    detector.restart()
    assert not detector.see([9.0])


def test_a_restored_detector_continues_alike():
    detector, resumed = Detector(), Detector()
    for value in (9.0, 1.0, 1.0):
        detector.see([value])
    resumed.load_state_dict(detector.state_dict())
    assert [each.see([1.0]) or each.see([8.0]) for each in (detector, resumed)] == [True, True]
