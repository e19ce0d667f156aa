import pytest

from forgetless.training import metrics

# after task 1, 2, 3 (rows) on task 1, 2, 3 (columns), in percent
MATRIX = [[90.0, 10.0, 20.0], [60.0, 80.0, 30.0], [70.0, 50.0, 96.0]]


def test_accuracy_is_the_mean_of_the_last_row():
    assert metrics.accuracy(MATRIX) == pytest.approx(72.0)


def test_anytime_accuracy_covers_the_tasks_seen_so_far():
    assert metrics.anytime(MATRIX) == pytest.approx([90.0, 70.0, 72.0])


def test_forgetting_is_the_drop_from_the_peak():
    # task 1: peak 90, now 70; task 2: peak 80, now 50
    assert metrics.forgetting(MATRIX) == pytest.approx((20.0 + 30.0) / 2)


def test_forgetting_ignores_accuracies_before_the_task_was_trained():
    assert metrics.forgetting([[50.0, 99.0, 0.0], [50.0, 60.0, 0.0], [50.0, 40.0, 70.0]]) == pytest.approx(10.0)


def test_backward_transfer_compares_with_the_accuracy_right_after_training():
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((70 - 90) + (50 - 80)) / 2)


def test_forward_transfer_compares_with_the_untrained_network():
    assert metrics.forward_transfer(MATRIX, [9.0, 8.0, 11.0]) == pytest.approx(((10 - 8) + (30 - 11)) / 2)


def test_a_single_row_has_no_forgetting_and_no_transfer():
    assert metrics.forgetting([[90.0, 91.0]]) is None
    assert metrics.backward_transfer([[90.0, 91.0]]) is None
    assert metrics.forward_transfer([[90.0, 91.0]], [0.0, 0.0]) is None
    assert metrics.anytime([[90.0, 91.0]]) == [90.5]
    assert metrics.accuracy([[90.0, 91.0]]) == 90.5


def test_std_over_seeds_divides_by_n_minus_one():
    assert metrics.mean_std([1.0, 2.0, 4.0, 5.0]) == (3.0, pytest.approx((10 / 3) ** 0.5))


def test_std_of_a_single_seed_is_zero():
    assert metrics.mean_std([72.5]) == (72.5, 0.0)
