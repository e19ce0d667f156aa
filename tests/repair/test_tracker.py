from itertools import pairwise

import pytest
import torch
from torch import nn

from forgetless.repair.sensitivity import changes
from forgetless.repair.tracker import Tracker


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


def compared(pairs):
    """The changes between pairs of snapshots, by hand."""
    return {
        key: [(now[name] - before[name]).abs().mean().item() for name in now] for key, (now, before) in pairs.items()
    }


def between_tasks(history):
    """Pairs of snapshots at the same epoch of consecutive tasks, by the later (task, epoch)."""
    return {
        (task + 1, epoch + 1): (history[task][epoch], history[task - 1][epoch])
        for task in range(1, len(history))
        for epoch in range(min(len(history[task]), len(history[task - 1])))
    }


def test_rows_between_epochs_cross_tasks():
    tracker, history = tracked((2, 3, 1))
    ends = [((task, epoch), end) for task, ends in enumerate(history, 1) for epoch, end in enumerate(ends, 1)]
    pairs = {key: (now, before) for (_, before), (key, now) in pairwise(ends)}
    assert set(pairs) == {(1, 2), (2, 1), (2, 2), (2, 3), (3, 1)}
    assert of_tracker(tracker.between_epochs) == compared(pairs)


def test_rows_between_tasks_compare_the_same_epoch():
    tracker, history = tracked((2, 3, 1, 3), epochs=3)
    assert of_tracker(tracker.between_tasks) == compared(between_tasks(history))
    assert set(of_tracker(tracker.between_tasks)) == {(2, 1), (2, 2), (3, 1), (4, 1)}


def test_by_default_only_first_epochs_are_compared():
    tracker, history = tracked((2, 3, 1, 3))
    assert set(of_tracker(tracker.between_tasks)) == {(2, 1), (3, 1), (4, 1)}
    rows = compared(between_tasks(history))
    mean = torch.tensor([rows[2, 1], rows[3, 1], rows[4, 1]]).mean(0)
    assert list(tracker.task_changes()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    torch.testing.assert_close(torch.tensor(list(tracker.task_changes().values())), mean)


def test_before_a_second_task_nothing_is_known():
    assert tracked((3,))[0].task_changes() == {}


def test_an_epoch_that_begins_a_task_is_its_first():
    model = network()
    tracker = follow(model)
    snapshots = []
    for step in range(6):
        walk(model, step)
        row = tracker.mark(begins_task=lambda row: row.epoch == 4)
        snapshots.append(tracker.snapshot())
        assert row is None or (row.task, row.epoch) == ((1, step + 1) if step < 3 else (2, step - 2))
    known = changes(snapshots[3], snapshots[0])
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
    assert row.changes.tolist() == [value.item() for value in changes(tracker.snapshot(), before).values()]


def test_what_a_finetuning_moved_is_left_out():
    model = nn.Linear(1, 1, bias=False)
    tracker = Tracker(model, ["weight"])
    nn.init.constant_(model.weight, 1.0)
    tracker.start()
    nn.init.constant_(model.weight, 4.0)  # 1 by training, 2 by a finetuning
    tracker.leave_out({"weight": torch.tensor([[2.0]])})
    assert tracker.mark().changes.tolist() == [1.0]


def test_what_finetunings_moved_still_counts_between_tasks():
    model = nn.Linear(1, 1, bias=False)
    tracker = Tracker(model, ["weight"])
    tracker.start()
    nn.init.constant_(model.weight, 1.0)
    tracker.mark()  # task 1, epoch 1: task 2 is compared with this weight
    nn.init.constant_(model.weight, 5.0)  # 1 by training, 3 by two finetunings
    tracker.leave_out({"weight": torch.tensor([[1.0]])})
    tracker.leave_out({"weight": torch.tensor([[2.0]])})
    assert tracker.mark().changes.tolist() == [1.0]
    tracker.boundary()
    nn.init.constant_(model.weight, 8.0)
    assert tracker.mark().changes.tolist() == [3.0]
    assert [row.changes.tolist() for row in tracker.between_tasks] == [[7.0]]


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


def test_a_restored_tracker_continues_alike(tmp_path):
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


def test_a_state_with_other_frozen_parameters_is_refused():
    tracker = follow(network())
    tracker.start()
    part = Tracker(network(), ["1.weight", "1.bias"])
    with pytest.raises(ValueError, match=r"other parameters frozen: 0\.bias differs. Freeze the same"):
        part.load_state_dict(tracker.state_dict())
    with pytest.raises(ValueError, match=r"other parameters frozen: 0\.bias differs"):
        part.start()
        follow(network()).load_state_dict(part.state_dict())


def test_non_finite_rows_are_left_out_unless_all_are():
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
