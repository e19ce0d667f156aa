"""Streams as values: what they refuse, how they are rearranged, and their validation sets."""

import pytest
import torch

from forgetless.data.augment import Preparation
from forgetless.data.builders import split_by_class, split_by_domain
from forgetless.data.stream import Split, Stream, Task


def test_labels_and_examples_must_match():
    with pytest.raises(ValueError, match="x has 2 examples and y has 3 labels"):
        Split(torch.zeros(2, 1, 1, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels have dtype torch.int32; they must be torch.int64"):
        Split(torch.zeros(2, 1, 1, 1), torch.zeros(2, dtype=torch.int32))


def test_streams_without_tasks_or_with_wrong_labels_are_refused(labelled):
    split = labelled(0, 1)
    with pytest.raises(ValueError, match="stream 's' has no tasks"):
        Stream("s", (), 2, "class")
    with pytest.raises(ValueError, match="task 1 has classes 0, 1; with 1 classes they must be below 1"):
        Stream("s", (Task(split, split, (0, 1)),), 1, "class")
    with pytest.raises(ValueError, match="task 1 has examples of class 1, but its classes are 0"):
        Stream("s", (Task(split, split, (0,)),), 2, "class")
    with pytest.raises(ValueError, match="task 2 has no training examples"):
        split_by_class("s", split, labelled(0, 1, 2), sizes=[2, 1])
    with pytest.raises(ValueError, match="task 1 has no training example of class 1"):
        split_by_class("s", labelled(0, 2), labelled(0, 2), sizes=[3])


def test_an_unknown_scenario_is_refused(labelled):
    split = labelled(0, 1)
    with pytest.raises(ValueError, match="scenario is 'clas'; it must be class or domain"):
        Stream("s", (Task(split, split, (0, 1)),), 2, "clas")


@pytest.mark.parametrize(
    ("prepare", "match"),
    [
        ({"mean": (0.5,)}, r"mean is \(0.5,\) and std is \(\); give both or neither"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0)}, r"give one number per channel \(3\) or one for all"),
        ({"mean": (0.5,), "std": (0.2, 0.0, 0.2)}, r"std is \(0.2, 0.0, 0.2\); each must be above 0"),
        ({"mean": 0.5, "std": 0}, r"std is \(0.0,\); each must be above 0"),
        ({"mirror": True}, "mirror is on and pad is 0; pad must be 1 or more and below the images' 2 pixels"),
        ({"mirror": True, "pad": 2}, "mirror is on and pad is 2; pad must be 1 or more and below"),
    ],
)
def test_an_invalid_preparation_is_refused(prepare, match):
    split = Split(torch.zeros(8, 3, 2, 2), torch.arange(8) % 2)
    with pytest.raises(ValueError, match=match):
        split_by_domain("s", [(split, split)], classes=2, **prepare)


def test_a_stream_prints_sizes_and_no_images():
    split = Split(torch.zeros(1200, 3, 2, 2), torch.arange(1200) % 2)
    text = repr(split_by_domain("s", [(split, split)], classes=2))
    assert "train=Split(1,200 examples of 3×2×2)" in text
    assert len(text) < 300


def test_one_number_normalises_all_channels():
    split = Split(torch.rand(8, 3, 2, 2), torch.arange(8) % 2)
    stream = split_by_domain("s", [(split, split)], classes=2, mean=0.5, std=0.2)
    assert (stream.mean, stream.std) == ((0.5,), (0.2,))
    prepared = Preparation(stream, torch.device("cpu")).plain(split.x)
    assert torch.allclose(prepared, (split.x - 0.5) / 0.2)


def test_crops_and_flips_need_images():
    features = Split(torch.rand(4, 4), torch.arange(4) % 2)
    with pytest.raises(ValueError, match=r"pad and flip need images .*, but an example has shape \(4,\)"):
        split_by_domain("s", [(features, features)], classes=2, flip=True)


@pytest.mark.parametrize("other", [torch.zeros(4, 1, 9, 9), torch.zeros(4, 1, 8, 8, dtype=torch.uint8)])
def test_tasks_of_different_shape_or_type_are_refused(other):
    y = torch.arange(4) % 2
    first = Split(torch.zeros(4, 1, 8, 8), y)
    with pytest.raises(ValueError, match="the training examples of task 2 are .* the same type and shape"):
        split_by_domain("s", [(first, first), (Split(other, y), first)], 2)


def test_joint_moves_all_training_examples_into_the_first_task(labelled):
    stream = split_by_class("s", labelled(0, 1, 2, 3), labelled(0, 1, 2, 3), sizes=[2, 2]).joint()
    assert stream.tasks[0].train.y.tolist() == [0, 1, 2, 3]
    assert [task.test.y.tolist() for task in stream.tasks] == [[0, 1], [2, 3]]


def test_validation_holds_out_a_tenth_of_every_class(labelled):
    train = labelled(*([0] * 30 + [1] * 50))
    test = Split(torch.full((4, 1, 2, 2), 200, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    (task,) = split_by_class("s", train, test, sizes=[2]).validation().tasks
    assert task.test.y.bincount().tolist() == [3, 5]
    assert task.train.y.bincount().tolist() == [27, 45]
    pixels = torch.cat([task.train.x, task.test.x])[:, 0, 0, 0]
    assert sorted(pixels.tolist()) == list(range(80))  # all of the training images, none of the test images


def test_validation_needs_two_examples_per_class(labelled):
    with pytest.raises(ValueError, match="class 1 has 1 example; holding out a share of 0.1 needs 2 or more"):
        split_by_class("s", labelled(0, 0, 1), labelled(0, 1), sizes=[2]).validation()


def test_tasks_with_equal_labels_hold_out_the_same_rows(labelled):
    """Otherwise one task would train on the rotated images that another task holds out."""
    first = labelled(*([0, 1] * 20))
    second = labelled(*([0] * 20 + [1] * 20)).subset(torch.randperm(40, generator=torch.Generator().manual_seed(0)))
    tasks = tuple(Task(split, split, (0, 1)) for split in (first, first, second, second))
    held_out = [task.test.x for task in Stream("s", tasks, 2, "domain").validation().tasks]
    assert torch.equal(held_out[0], held_out[1])
    assert torch.equal(held_out[2], held_out[3])


def test_recurring_images_are_held_out_of_all_tasks(labelled):
    images = labelled(*([0] * 40 + [1] * 40 + [2] * 40))
    tasks = []
    for classes in ((0, 1), (1, 2), (0, 2)):
        split = images.where(torch.isin(images.y, torch.tensor(classes)))
        tasks.append(Task(split, split, classes))
    tasks = Stream("recurring", tuple(tasks), 3, "class").validation(0.25).tasks
    trained = {int(x[0, 0, 0]) for task in tasks for x in task.train.x}
    tested = {int(x[0, 0, 0]) for task in tasks for x in task.test.x}
    assert not trained & tested
    assert [len(task.test) for task in tasks] == [20, 20, 20]
    assert trained | tested == set(range(120))


def test_recurring_images_in_other_orders_stay_held_out(labelled):
    images = labelled(*([0] * 5 + [1] * 5))
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(10, generator=generator) for _ in range(10)]
    stream = Stream("orders", tuple(Task(images.subset(order), images, (0, 1)) for order in orders), 2, "domain")
    tasks = stream.validation().tasks
    assert [(len(task.train), len(task.test)) for task in tasks] == [(8, 2)] * 10
    assert len({int(x[0, 0, 0]) for task in tasks for x in task.test.x}) == 2


def test_examples_equal_by_chance_are_not_all_held_out():
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for _ in range(3):
        x = torch.randint(2, (1000, 6), generator=generator).float()
        split = Split(x, torch.randint(2, (1000,), generator=generator))
        tasks.append(Task(split, split, (0, 1)))
    tasks = Stream("coarse", tuple(tasks), 2, "domain").validation().tasks
    assert len(tasks[0].train) == 900
    assert all(850 < len(task.train) < 950 for task in tasks)
