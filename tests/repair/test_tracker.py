import pytest
import torch
from torch import nn

from forgetless.repair import sensitivity as dynamics
from forgetless.repair.tracker import Detector, Tracker


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def follow(model, **settings):
    return Tracker(model, [name for name, _ in model.named_parameters()], **settings)


def walk(model, seed):
    """Move the parameters at random; the same seed makes the same move."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))


def tracked(tasks, **settings):
    """A tracker that went through ``tasks`` of so many epochs each, and the snapshots taken on the way."""
    model = network()
    tracker = follow(model, **settings)
    history = []
    for task, epochs in enumerate(tasks):
        if task:
            tracker.boundary()
        history.append([])
        for epoch in range(epochs):
            walk(model, 10 * task + epoch)
            tracker.mark()
            history[-1].append(tracker.snapshot())
    return tracker, history


def of_tracker(rows):
    return {(row.task, row.epoch): row.changes.tolist() for row in rows}


def of_history(changes):
    return {key: [value.item() for value in row.values()] for key, row in changes.items()}


def test_rows_between_epochs_are_those_of_the_pure_function():
    tracker, history = tracked((2, 3, 1))
    assert of_tracker(tracker.between_epochs) == of_history(dynamics.between_epochs(history))


def test_rows_between_tasks_are_those_of_the_pure_function():
    tracker, history = tracked((2, 3, 1, 3), epochs=None)
    assert of_tracker(tracker.between_tasks) == of_history(dynamics.between_tasks(history))
    assert set(of_tracker(tracker.between_tasks)) == {(2, 1), (2, 2), (3, 1), (4, 1)}


def test_by_default_only_first_epochs_are_compared():
    tracker, history = tracked((2, 3, 1, 3))
    assert set(of_tracker(tracker.between_tasks)) == {(2, 1), (3, 1), (4, 1)}
    rows = of_history(dynamics.between_tasks(history))
    mean = torch.tensor([rows[2, 1], rows[3, 1], rows[4, 1]]).mean(0)
    assert list(tracker.task_changes()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    torch.testing.assert_close(torch.tensor(list(tracker.task_changes().values())), mean)


def test_before_a_second_task_nothing_is_known():
    assert tracked((3,))[0].task_changes() == {}


def test_an_epoch_found_to_begin_a_task_is_its_first():
    model = network()
    tracker = follow(model)
    snapshots = []
    for step in range(6):
        walk(model, step)
        row = tracker.mark(begins_task=lambda row: row.epoch == 4)
        snapshots.append(tracker.snapshot())
        assert row is None or (row.task, row.epoch) == ((1, step + 1) if step < 3 else (2, step - 2))
    known = dynamics.changes(snapshots[3], snapshots[0])
    assert of_tracker(tracker.between_tasks) == {(2, 1): [value.item() for value in known.values()]}


def test_a_start_leaves_out_what_came_before_it():
    model = network()
    tracker = follow(model)
    tracker.start()
    walk(model, 1)
    tracker.start()
    before = tracker.snapshot()
    walk(model, 2)
    row = tracker.mark()
    assert row.changes.tolist() == [value.item() for value in dynamics.changes(tracker.snapshot(), before).values()]


def test_buffers_that_were_replaced_are_still_followed():
    model = nn.BatchNorm1d(2)
    tracker = Tracker(model, ["running_mean"])
    tracker.start()
    model.running_mean = torch.tensor([3.0, 5.0])
    assert tracker.mark().changes.tolist() == [4.0]


def test_a_tensor_that_is_gone_is_named():
    model = network()
    tracker = follow(model)
    del model[1]
    with pytest.raises(ValueError, match=r"the network no longer has 1\.weight"):
        tracker.mark()


def test_the_rows_held_are_bounded():
    tracker, _ = tracked((9, 9), keep=4)
    assert len(tracker.between_epochs) == 4


def test_a_restored_tracker_goes_on_as_if_never_stopped(tmp_path):
    model = network()
    straight = follow(model)
    straight.start()
    resumed = None
    for step in range(12):
        walk(model, step)
        if step == 5:
            torch.save(straight.state_dict(), tmp_path / "tracker.pt")
            resumed = follow(model)
            resumed.load_state_dict(torch.load(tmp_path / "tracker.pt", weights_only=True))
        for tracker in (straight, resumed):
            if tracker is not None:
                tracker.mark()
                if step % 4 == 3:
                    tracker.boundary()
    assert of_tracker(straight.between_epochs) == of_tracker(resumed.between_epochs)
    assert of_tracker(straight.between_tasks) == of_tracker(resumed.between_tasks)
    assert set(of_tracker(resumed.between_tasks)) == {(2, 1), (3, 1)}


def test_a_state_of_another_network_is_refused():
    other = nn.Linear(3, 4)
    tracker = follow(other)
    tracker.start()
    with pytest.raises(ValueError, match="saved from another network"):
        follow(network()).load_state_dict(tracker.state_dict())


def test_the_detector_finds_what_the_pure_function_finds():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        rows = torch.rand(40, 3, generator=generator).pow(3).tolist()
        detector = Detector()
        assert [w for w, row in enumerate(rows) if detector.see(row)] == dynamics.boundaries(rows)


def test_a_restarted_detector_must_settle_again():
    detector = Detector()
    assert not any(detector.see([value]) for value in (9.0, 1.0, 1.0, 1.0))
    detector.restart()
    assert not detector.see([9.0])


def test_a_state_that_followed_what_is_frozen_here_says_so():
    tracker = follow(network())
    tracker.start()
    part = Tracker(network(), ["1.weight", "1.bias"])
    with pytest.raises(ValueError, match=r"of a run that followed 0\.bias: make this while the same parameters"):
        part.load_state_dict(tracker.state_dict())
    with pytest.raises(ValueError, match=r"of a run that did not follow 0\.bias"):
        part.start()
        follow(network()).load_state_dict(part.state_dict())


def test_a_row_that_is_not_finite_is_left_out_unless_all_are():
    model = nn.Linear(1, 1, bias=False)
    tracker = Tracker(model, ["weight"])
    rows = []
    for value in (0.0, 2.0, float("nan"), 4.0, 10.0):
        nn.init.constant_(model.weight, value)
        tracker.mark()
        tracker.boundary()
        rows.append(tracker.task_changes())
    assert rows[:2] == [{}, {"weight": 2.0}]
    assert [row["weight"] for row in rows[2:]] == [2.0, 2.0, 4.0]  # the mean of 2 and 6
    nn.init.constant_(model.weight, float("nan"))
    diverged = Tracker(model, ["weight"])
    for _ in range(2):
        diverged.mark()
        diverged.boundary()
    assert diverged.task_changes()["weight"] != diverged.task_changes()["weight"]  # NaN


def test_a_buffer_that_follows_the_batch_is_told_from_a_layer_that_was_replaced():
    model = nn.Linear(2, 2)
    model.register_buffer("state", torch.zeros(8, 2))
    tracker = Tracker(model, ["weight", "state"])
    tracker.start()
    model.state = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"state had shape \(8, 2\), now it has \(3, 2\)\. A buffer that follows"):
        tracker.mark()
    model.weight = nn.Parameter(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="A network with a layer replaced or added needs an FPF of its own"):
        tracker.mark()
