"""Streams built from tensors, data sets, folders, classes, domains and rotations."""

import numpy
import pytest
import torch
from PIL import Image

from forgetless.data.builders import from_dataset, from_folder, from_tensors, rotate, rotated, split_by_class
from forgetless.data.readers.examples import image_files
from forgetless.data.readers.files import DataError
from forgetless.data.readers.images import read_folder
from forgetless.data.stream import Split


def test_each_task_gets_its_classes(labelled):
    stream = split_by_class("s", labelled(0, 1, 2, 3, 0, 3), labelled(3, 2, 1, 0), sizes=[1, 3])
    assert [task.classes for task in stream.tasks] == [(0,), (1, 2, 3)]
    assert [task.train.y.tolist() for task in stream.tasks] == [[0, 0], [1, 2, 3, 3]]
    assert stream.tasks[0].train.x[:, 0, 0, 0].tolist() == [0, 4]
    assert [task.test.y.tolist() for task in stream.tasks] == [[0], [3, 2, 1]]
    assert stream.scenario == "class"
    assert stream.shape == (1, 2, 2)


def test_a_class_order_renumbers_the_labels(labelled):
    stream = split_by_class("s", labelled(0, 1, 2, 3), labelled(0, 1, 2, 3), sizes=[2, 2], order=[3, 1, 0, 2])
    # class 3 becomes 0, 1 stays 1, 0 becomes 2, 2 becomes 3
    assert stream.tasks[0].train.y.tolist() == [1, 0]
    assert stream.tasks[0].train.x[:, 0, 0, 0].tolist() == [1, 3]
    assert stream.tasks[1].train.y.tolist() == [2, 3]


def test_a_seed_orders_the_classes_reproducibly(labelled):
    def pixels(seed):
        stream = split_by_class("s", labelled(*range(8)), labelled(*range(8)), sizes=[2] * 4, order=seed)
        return [task.train.x[:, 0, 0, 0].tolist() for task in stream.tasks]

    assert pixels(1) == pixels(1)
    assert pixels(1) != pixels(2)


def test_orders_and_sizes_must_fit_the_labels(labelled):
    split = labelled(0, 1)
    with pytest.raises(ValueError, match=r"order is \[0, 0\]; it must name each of the classes 0 to 1 once"):
        split_by_class("s", split, split, sizes=[2], order=[0, 0])
    with pytest.raises(ValueError, match=r"sizes \[1\] add up to 1 classes, but the labels go from 0 to 1"):
        split_by_class("s", split, split, sizes=[1])


def test_right_angles_rotate_exactly():
    x = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    assert torch.equal(rotate(x, 0), x)
    assert torch.equal(rotate(x, 90), torch.rot90(x, 1, (2, 3)))
    assert torch.equal(rotate(x, 180), torch.rot90(x, 2, (2, 3)))


def test_rotation_fills_the_corners_with_zeros():
    turned = rotate(torch.full((1, 1, 9, 9), 7, dtype=torch.uint8), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 4, 4] == 7
    assert turned.dtype == torch.uint8


def test_rotated_tasks_share_labels_but_not_images():
    x = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(x, torch.arange(6) % 2)
    stream = rotated("r", split, split, tasks=3, classes=2)
    assert stream.scenario == "domain"
    assert [task.train.y.tolist() for task in stream.tasks] == [split.y.tolist()] * 3
    assert not torch.equal(stream.tasks[0].train.x, stream.tasks[1].train.x)


def test_tensors_arrays_datasets_and_folders_give_equal_streams(tmp_path):
    x = torch.randint(256, (40, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(4).repeat_interleave(10)
    pairs = list(zip(x, y.tolist(), strict=True))
    for number, (image, label) in enumerate(pairs):
        (tmp_path / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"class{label}" / f"{number:02}.png")
    stream = from_tensors(x, y, [2, 2])
    assert len(stream.tasks[0].test) == 4
    others = [from_tensors(x.numpy(), y.numpy(), [2, 2]), from_dataset(pairs, [2, 2]), from_folder(tmp_path, [2, 2])]
    for other in others:
        for one, two in zip(stream.tasks, other.tasks, strict=True):
            assert torch.equal(one.train.x, two.train.x)
            assert torch.equal(one.test.y, two.test.y)


def test_images_of_different_sizes_need_a_size(tmp_path):
    for name, size in (("a", 4), ("b", 6)):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (size, size)).save(tmp_path / name / f"{number}.png")
    with pytest.raises(DataError, match="images have different sizes .* size=… resizes them"):
        from_folder(tmp_path, [1, 1])
    assert from_folder(tmp_path, [1, 1], size=5).shape == (3, 5, 5)


def test_the_parts_of_a_data_set_are_not_classes(tmp_path):
    for part, name in ((part, name) for part in ("train", "test") for name in ("cat", "dog")):
        (tmp_path / part / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4)).save(tmp_path / part / name / f"{number}.png")
    message = "holds the folders test, train, so the classes seem to be one level below; give one of them, such as"
    for read in (lambda folder: from_folder(folder, [2]), image_files):
        with pytest.raises(DataError, match=message):
            read(tmp_path)
    assert from_folder(tmp_path / "train", [2]).classes == 2


def test_hidden_folders_and_files_are_skipped(tmp_path):
    for name in ("cat", "cat/.thumbnails", "dog", ".cache"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{number}.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "cat" / "._0.png")
    x, y = read_folder(tmp_path, None)
    assert (len(x), y.tolist()) == (6, [0, 0, 0, 1, 1, 1])
    assert image_files(tmp_path)[2] == ["cat", "dog"]


def test_folders_without_classes_or_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere holds no folders of classes"):
        from_folder(tmp_path / "nowhere", [1])
    with pytest.raises(DataError, match="holds no folders of classes"):
        from_folder(tmp_path, [1])
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a holds no images"):
        from_folder(tmp_path, [1])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"y": torch.tensor([-1, -1, 0, 0] * 5)}, "add up to 4 classes, but the labels go from -1 to 0"),
        ({"y": torch.arange(20) / 4}, "y holds fractions; it must hold class numbers"),
        ({"y": ["cat", "dog"] * 10}, "y holds str; it must hold class numbers 0, 1, …; numpy.unique"),
        ({"y": torch.eye(4).repeat(5, 1)}, r"y has shape \(20, 4\); it must hold one class per example"),
        ({"sizes": 2}, "sizes is 2; it must be a list with the number of classes of each task"),
        ({"test": 1.5}, "test is 1.5; it must be between 0 and 1"),
    ],
)
def test_invalid_labels_sizes_and_shares_are_refused(given, match):
    with pytest.raises(ValueError, match=match):
        from_tensors(**{"x": torch.rand(20, 3), "y": torch.arange(20) % 4, "sizes": [2, 2]} | given)


def test_whole_numbers_as_floats_are_labels():
    stream = from_tensors(torch.zeros(8, 1, 2, 2), torch.arange(8) % 2.0, [1, 1])
    assert stream.tasks[0].train.y.dtype == torch.int64


@pytest.mark.parametrize(
    ("shape", "of_example"),
    [((8, 5), (5,)), ((8, 4, 4), (1, 4, 4)), ((8, 3, 4, 4), (3, 4, 4)), ((8, 2, 3, 4, 4), (2, 3, 4, 4))],
)
def test_only_grey_images_get_a_channel(shape, of_example):
    assert from_tensors(torch.zeros(shape), torch.arange(8) % 2, [1, 1]).shape == of_example


def test_a_dataset_must_return_tensors_and_class_numbers():
    with pytest.raises(ValueError, match="the first a object.*transform=ToTensor"):
        from_dataset([(object(), 0), (object(), 1)], [1, 1])
    with pytest.raises(ValueError, match="y holds str"):
        from_dataset([(torch.rand(3), "cat"), (torch.rand(3), "dog")], [1, 1])


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="dataset is an empty list; it must hold examples of each class"):
        from_dataset([], [2])


def test_a_dataset_may_return_labels_as_arrays():
    items = [(torch.rand(3), numpy.array([label])) for label in (0, 1, 0, 1)]  # as MedMNIST does
    assert [task.classes for task in from_dataset(items, [1, 1], test=0.5).tasks] == [(0,), (1,)]
