import numpy
import pytest
import torch
from PIL import Image

from forgetless.data import stream
from forgetless.data.readers.files import DataError
from forgetless.data.stream import Split, Stream, Task


def labelled(*labels):
    """Images that hold their own number in the first pixel."""
    y = torch.tensor(labels)
    x = torch.arange(len(y), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone()
    return Split(x, y)


def test_split_by_class_gives_each_task_its_classes():
    found = stream.split_by_class("s", labelled(0, 1, 2, 3, 0, 3), labelled(3, 2, 1, 0), sizes=[1, 3])
    assert [task.classes for task in found.tasks] == [(0,), (1, 2, 3)]
    assert [task.train.y.tolist() for task in found.tasks] == [[0, 0], [1, 2, 3, 3]]
    assert found.tasks[0].train.x[:, 0, 0, 0].tolist() == [0, 4]
    assert [task.test.y.tolist() for task in found.tasks] == [[0], [3, 2, 1]]
    assert found.scenario == "class"
    assert found.shape == (1, 2, 2)


def test_an_order_of_classes_renumbers_the_labels():
    found = stream.split_by_class("s", labelled(0, 1, 2, 3), labelled(0, 1, 2, 3), sizes=[2, 2], order=[3, 1, 0, 2])
    # class 3 becomes 0, 1 stays 1, 0 becomes 2, 2 becomes 3
    assert found.tasks[0].train.y.tolist() == [1, 0]
    assert found.tasks[0].train.x[:, 0, 0, 0].tolist() == [1, 3]
    assert found.tasks[1].train.y.tolist() == [2, 3]


def test_a_seed_orders_the_classes_and_repeats():
    def first(seed):
        found = stream.split_by_class("s", labelled(*range(8)), labelled(*range(8)), sizes=[2] * 4, order=seed)
        return [task.train.x[:, 0, 0, 0].tolist() for task in found.tasks]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_validation_holds_out_a_tenth_of_every_class_and_leaves_the_test_set_alone():
    train = labelled(*([0] * 30 + [1] * 50))
    test = Split(torch.full((4, 1, 2, 2), 200, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    (task,) = stream.split_by_class("s", train, test, sizes=[2]).validation().tasks
    assert task.test.y.bincount().tolist() == [3, 5]
    assert task.train.y.bincount().tolist() == [27, 45]
    pixels = torch.cat([task.train.x, task.test.x])[:, 0, 0, 0]
    assert sorted(pixels.tolist()) == list(range(80))  # all of the training images, none of the test images


def test_tasks_of_the_same_images_hold_out_the_same_of_them():
    """Otherwise what one task holds out, another trains on, turned: nothing would be held out at all."""
    whole = labelled(*([0, 1] * 20))
    tasks = tuple(stream.Task(whole, whole, (0, 1)) for _ in range(3))
    held = [task.test.x for task in stream.Stream("turned", tasks, 2, "domain").validation().tasks]
    assert torch.equal(held[0], held[1])
    assert torch.equal(held[0], held[2])


def test_so_do_tasks_of_the_same_images_that_are_not_those_of_the_first():
    generator = torch.Generator().manual_seed(0)
    first, whole = labelled(*([0, 1] * 20)), labelled(*torch.arange(40).remainder(2).sort().values.tolist())
    whole = whole.of(torch.randperm(40, generator=generator))
    tasks = tuple(stream.Task(split, split, (0, 1)) for split in (first, whole, whole))
    held = [task.test.x for task in stream.Stream("mixed", tasks, 2, "domain").validation().tasks]
    assert torch.equal(held[1], held[2])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scenario": "clas"}, "scenario is 'clas'; it must be class or domain"),
        ({"flip": True, "tasks": "features"}, r"flip True, but an example has shape \(4,\); they are for images"),
        ({"tasks": "foreign"}, "task 1 has examples of class 1, but its classes are 0"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(change, match):
    whole = labelled(0, 1, 0, 1)
    features = Split(torch.rand(4, 4), torch.tensor([0, 1, 0, 1]))
    kinds = {"features": stream.Task(features, features, (0, 1)), "foreign": stream.Task(whole, whole, (0,))}
    given = {"tasks": "", "scenario": "class"} | change
    tasks = (kinds.get(given.pop("tasks"), stream.Task(whole, whole, (0, 1))),)
    with pytest.raises(ValueError, match=match):
        stream.Stream("mine", tasks, 2, **given)


class Images:
    """A dataset that gives what is no tensor."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_an_image_that_recurs_is_held_out_of_all_tasks_or_none():
    """Tasks of the classes 0 and 1, 1 and 2, 0 and 2, on the same images: none that is tested on is trained on."""
    images = labelled(*([0] * 40 + [1] * 40 + [2] * 40))
    tasks = []
    for classes in ((0, 1), (1, 2), (0, 2)):
        split = images.of(torch.isin(images.y, torch.tensor(classes)).nonzero()[:, 0])
        tasks.append(Task(split, split, classes))
    found = Stream("recurring", tuple(tasks), 3, "class").validation(0.25).tasks
    trained, tested = (
        {int(x[0, 0, 0]) for task in found for x in of(task)} for of in (lambda t: t.train.x, lambda t: t.test.x)
    )
    assert not trained & tested
    assert [len(task.test) for task in found] == [20, 20, 20]
    assert trained | tested == set(range(120))


def test_images_that_recur_in_many_tasks_leave_as_many_to_train_on():
    images = labelled(*([0] * 5 + [1] * 5))
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(10, generator=generator) for _ in range(10)]
    tasks = tuple(Task(images.of(order), images, (0, 1)) for order in orders)
    found = Stream("orders", tasks, 2, "domain").validation().tasks
    assert [(len(task.train), len(task.test)) for task in found] == [(8, 2)] * 10
    assert len({int(x[0, 0, 0]) for task in found for x in task.test.x}) == 2


def test_examples_that_are_equal_by_chance_are_not_all_held_out():
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for _ in range(3):
        split = Split(
            torch.randint(2, (1000, 6), generator=generator).float(), torch.randint(2, (1000,), generator=generator)
        )
        tasks.append(Task(split, split, (0, 1)))
    found = Stream("coarse", tuple(tasks), 2, "domain").validation().tasks
    assert len(found[0].train) == 900
    assert all(850 < len(task.train) < 950 for task in found)


def test_labels_that_are_words_and_images_that_are_no_tensors_are_named():
    with pytest.raises(ValueError, match=r"y holds str; it must hold classes 0, 1, …; number them: numpy.unique"):
        stream.from_tensors(torch.rand(4, 3), ["cat", "dog", "cat", "dog"], [1, 1])
    with pytest.raises(ValueError, match="the first a object.*transform=ToTensor"):
        stream.from_dataset(Images([(object(), 0), (object(), 1)]), [1, 1])
    with pytest.raises(ValueError, match="y holds str"):
        stream.from_dataset(Images([(torch.rand(3), "cat"), (torch.rand(3), "dog")]), [1, 1])
    items = [(torch.rand(3), numpy.array([label])) for label in (0, 1, 0, 1)]  # labels as MedMNIST gives them
    assert [task.classes for task in stream.from_dataset(Images(items), [1, 1], test=0.5).tasks] == [(0,), (1,)]
    with pytest.raises(ValueError, match="dataset has no examples"):
        stream.from_dataset(Images([]), [1, 1])
    with pytest.raises(
        ValueError, match=r"sizes is \[1.0, 1.0\]; it must be a list, the number of classes of each task"
    ):
        stream.from_tensors(torch.rand(4, 3), [0, 1, 0, 1], [1.0, 1.0])


def test_joint_puts_all_training_examples_first_and_keeps_the_tests_apart():
    found = stream.split_by_class("s", labelled(0, 1, 2, 3), labelled(0, 1, 2, 3), sizes=[2, 2]).joint()
    assert found.tasks[0].train.y.tolist() == [0, 1, 2, 3]
    assert [task.test.y.tolist() for task in found.tasks] == [[0, 1], [2, 3]]


def test_rotation_by_right_angles_is_exact():
    x = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    assert torch.equal(stream.rotate(x, 0), x)
    assert torch.equal(stream.rotate(x, 90), torch.rot90(x, 1, (2, 3)))
    assert torch.equal(stream.rotate(x, 180), torch.rot90(x, 2, (2, 3)))


def test_rotation_fills_with_zeros():
    turned = stream.rotate(torch.full((1, 1, 9, 9), 7, dtype=torch.uint8), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 4, 4] == 7
    assert turned.dtype == torch.uint8


def test_rotated_tasks_have_the_same_labels_and_other_images():
    x = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(x, torch.arange(6) % 2)
    found = stream.rotated("r", split, split, tasks=3, classes=2)
    assert found.scenario == "domain"
    assert [task.train.y.tolist() for task in found.tasks] == [split.y.tolist()] * 3
    assert not torch.equal(found.tasks[0].train.x, found.tasks[1].train.x)


def test_own_tensors_datasets_and_folders_make_the_same_stream(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (40, 3, 4, 4), dtype=torch.uint8, generator=generator)
    y = torch.arange(4).repeat_interleave(10)
    for i, (image, label) in enumerate(zip(x, y.tolist(), strict=True)):
        (tmp_path / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"class{label}" / f"{i:02}.png")
    pairs = list(zip(x, y.tolist(), strict=True))
    made = [
        stream.from_tensors(x, y, [2, 2]),
        stream.from_dataset(pairs, [2, 2]),
        stream.from_folder(tmp_path, [2, 2]),
    ]
    for other in made[1:]:
        for one, two in zip(made[0].tasks, other.tasks, strict=True):
            assert torch.equal(one.train.x, two.train.x)
            assert torch.equal(one.test.y, two.test.y)
    assert len(made[0].tasks[0].test) == 4


def test_images_of_different_sizes_need_a_size(tmp_path):
    for name, size in (("a", 4), ("b", 6)):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (size, size)).save(tmp_path / name / f"{i}.png")
    with pytest.raises(DataError, match="images of different sizes .* give size="):
        stream.from_folder(tmp_path, [1, 1])
    assert stream.from_folder(tmp_path, [1, 1], size=5).shape == (3, 5, 5)


def test_what_cannot_be_a_stream_is_refused():
    train = labelled(0, 1)
    with pytest.raises(ValueError, match="2 examples and 3 labels"):
        Split(torch.zeros(2, 1, 1, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"order is \[0, 0\]; it must name each of the classes 0 to 1 once"):
        stream.split_by_class("s", train, train, sizes=[2], order=[0, 0])
    with pytest.raises(ValueError, match="make 1 classes, but the labels go from 0 to 1"):
        stream.split_by_class("s", train, train, sizes=[1])
    with pytest.raises(ValueError, match="task 2 has no training examples"):
        stream.split_by_class("s", train, labelled(0, 1, 2), sizes=[2, 1])
    with pytest.raises(ValueError, match="task 1 has no training example of class 1"):
        stream.split_by_class("s", labelled(0, 2), labelled(0, 2), sizes=[3])
    with pytest.raises(ValueError, match="stream 's' has no tasks"):
        Stream("s", (), 2, "class")
    with pytest.raises(ValueError, match="task 1 has labels from 0 to 1; with 1 classes they must be 0 to 0"):
        Stream("s", (Task(train, train, (0,)),), 1, "class")
    with pytest.raises(ValueError, match="class 1 has 1 example"):
        stream.split_by_class("s", labelled(0, 0, 1), train, sizes=[2]).validation()


@pytest.mark.parametrize(
    ("prepare", "match"),
    [
        ({"mean": (0.5,)}, r"mean is \(0.5,\) and std is \(\); give both, or neither"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0)}, "it must have a number for each of the 3 channels, or one"),
        ({"mean": (0.5,), "std": (0.0,)}, r"std is \(0.0,\); it must be above 0"),
        ({"test": 1.5}, "test is 1.5; it must be between 0 and 1"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused(prepare, match):
    x, y = torch.zeros(8, 3, 2, 2), torch.arange(8) % 2
    with pytest.raises(ValueError, match=match):
        stream.from_tensors(x, y, sizes=[1, 1], **prepare)


def test_labels_that_are_no_classes_are_refused():
    x = torch.zeros(8, 1, 2, 2)
    with pytest.raises(ValueError, match="make 2 classes, but the labels go from -1 to 1"):
        stream.from_tensors(x, torch.tensor([-1, -1, 0, 0, 0, 1, 1, 1]), [1, 1])
    with pytest.raises(ValueError, match="y must hold classes, as whole numbers; it holds fractions"):
        stream.from_tensors(x, torch.arange(8) / 4, [1, 1])
    assert stream.from_tensors(x, torch.arange(8) % 2.0, [1, 1]).tasks[0].train.y.dtype == torch.int64


def test_features_and_signals_keep_their_shape_and_grey_images_get_a_channel():
    y = torch.arange(8) % 2
    shapes = {(8, 5): (5,), (8, 4, 4): (1, 4, 4), (8, 3, 4, 4): (3, 4, 4), (8, 2, 3, 4, 4): (2, 3, 4, 4)}
    assert {shape: stream.from_tensors(torch.zeros(shape), y, [1, 1]).shape for shape in shapes} == shapes


def test_tasks_whose_examples_differ_in_shape_or_type_are_refused():
    y = torch.arange(4) % 2
    first = Split(torch.zeros(4, 1, 8, 8), y)
    for other in (torch.zeros(4, 1, 9, 9), torch.zeros(4, 1, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="the training examples of task 2 are .* all must be alike"):
            stream.split_by_domain("mine", [(first, first), (Split(other, y), first)], 2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sizes": 2}, "sizes is 2; it must be a list, the number of classes of each task"),
        (
            {"y": torch.eye(4).repeat(5, 1)},
            r"y has shape \(20, 4\); it must hold the class of each",
        ),
    ],
)
def test_what_is_no_list_of_sizes_or_of_classes_is_refused(change, match):
    with pytest.raises(ValueError, match=match):
        stream.from_tensors(**{"x": torch.rand(20, 3), "y": torch.arange(20) % 4, "sizes": [2, 2]} | change)


def test_arrays_of_numpy_are_taken():
    x, y = torch.rand(20, 3), torch.arange(20) % 4
    found, wanted = stream.from_tensors(x.numpy(), y.numpy(), [2, 2]), stream.from_tensors(x, y, [2, 2])
    assert torch.equal(found.tasks[1].train.x, wanted.tasks[1].train.x)
    assert torch.equal(found.tasks[1].test.y, wanted.tasks[1].test.y)
