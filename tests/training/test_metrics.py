import pytest

from forgetless.training import metrics as scores

# after task 1, 2, 3 (rows) on task 1, 2, 3 (columns), in percent
MATRIX = [[90.0, 10.0, 20.0], [60.0, 80.0, 30.0], [70.0, 50.0, 96.0]]


def test_accuracy_is_the_mean_of_the_last_row():
    assert scores.accuracy(MATRIX) == pytest.approx(72.0)


def test_anytime_accuracy_is_over_the_tasks_seen():
    assert scores.anytime(MATRIX) == pytest.approx([90.0, 70.0, 72.0])


def test_forgetting_is_from_the_best_before_the_end():
    # task 1: best 90, now 70; task 2: best 80, now 50
    assert scores.forgetting(MATRIX) == pytest.approx((20.0 + 30.0) / 2)


def test_forgetting_counts_from_the_task_itself_on():
    # what is measured on a task before it was trained is no knowledge to forget
    assert scores.forgetting([[50.0, 99.0, 0.0], [50.0, 60.0, 0.0], [50.0, 40.0, 70.0]]) == pytest.approx(10.0)


def test_backward_transfer_is_against_the_accuracy_right_after_the_task():
    assert scores.backward_transfer(MATRIX) == pytest.approx(((70 - 90) + (50 - 80)) / 2)


def test_forward_transfer_is_against_the_untrained_network():
    assert scores.forward_transfer(MATRIX, [9.0, 8.0, 11.0]) == pytest.approx(((10 - 8) + (30 - 11)) / 2)


def test_a_single_row_has_no_transfer():
    for score in (
        scores.forgetting,
        scores.backward_transfer,
        lambda matrix: scores.forward_transfer(matrix, [0.0, 0.0]),
    ):
        assert score([[90.0, 91.0]]) is None
    assert scores.anytime([[90.0, 91.0]]) == [90.5]
    assert scores.accuracy([[90.0, 91.0]]) == 90.5
