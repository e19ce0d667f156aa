"""Readers on small files, corrupt ones included."""

import gzip
import os

import numpy
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from forgetless.data.readers import cifar, digits, images, medmnist, mnist
from forgetless.data.readers.files import DataError, data_folder


def test_mnist_is_read_packed_and_unpacked(mnist_folder):
    train, test = mnist.read(mnist_folder)
    assert train.x.shape == (6, 1, 2, 2)
    assert train.x[2, 0].tolist() == [[8, 9], [10, 11]]
    assert test.y.tolist() == [0, 1, 2]
    packed = mnist_folder / "MNIST/raw/train-labels-idx1-ubyte.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert mnist.read(mnist_folder)[0].y.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data[: len(data) // 2], "not readable as gzip"),
        (lambda data: b"no gzip at all", "not readable as gzip"),
        (lambda data: gzip.compress(b"\1\2\3\4rest"), "no complete idx header"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "23 bytes of values, expected 24"),
        (lambda data: gzip.compress(b"\0\0\x08\x03\0"), "no complete idx header"),
    ],
)
def test_a_corrupt_mnist_file_is_named(mnist_folder, damage, match):
    path = mnist_folder / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.gz is corrupt \({match}.*forgetless data get mnist"):
        mnist.read(mnist_folder)


def test_a_missing_file_is_named_with_its_command(tmp_path):
    with pytest.raises(DataError, match="is missing: run `forgetless data get mnist`, or set FORGETLESS_DATA"):
        mnist.read(tmp_path)
    with pytest.raises(DataError, match="forgetless data get cifar10"):
        cifar.read(tmp_path)
    with pytest.raises(DataError, match="forgetless data get pathmnist"):
        medmnist.read(tmp_path, "pathmnist")


def test_cifar_rows_are_a_label_and_three_planes(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = numpy.zeros((10_000, cifar.ROW), numpy.uint8)
    rows[:, 0] = numpy.arange(10_000) % 10
    rows[7, 1:1025], rows[7, 1025:2049], rows[7, 2049:] = 1, 2, 3
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        rows.tofile(folder / f"{name}.bin")
    train, test = cifar.read(tmp_path)
    assert len(train) == 50_000
    assert test.y[:3].tolist() == [0, 1, 2]
    assert train.x[7, :, 5, 5].tolist() == [1, 2, 3]
    with (folder / "data_batch_3.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"data_batch_3.bin is corrupt \(it has 30730001 bytes, expected 30730000\)"):
        cifar.read(tmp_path)
    rows[0, 0] = 10
    rows.tofile(folder / "data_batch_3.bin")
    with pytest.raises(DataError, match="label 10, expected 0 to 9"):
        cifar.read(tmp_path)


def read_medmnist(tmp_path, **arrays):
    numpy.savez(tmp_path / "pathmnist.npz", **arrays)
    return medmnist.read(tmp_path, "pathmnist")


def test_medmnist_has_training_and_test_sets(tmp_path):
    grey = numpy.zeros((3, 4, 4), numpy.uint8)
    colour = numpy.arange(2 * 4 * 4 * 3, dtype=numpy.uint8).reshape(2, 4, 4, 3)
    labels = numpy.array([[2], [1]], numpy.uint8)
    train, test = read_medmnist(
        tmp_path, train_images=grey, train_labels=numpy.array([[0], [1], [2]]), test_images=colour, test_labels=labels
    )
    assert train.x.shape == (3, 1, 4, 4)
    assert test.x.shape == (2, 3, 4, 4)
    assert test.x[0, :, 0, 0].tolist() == [0, 1, 2]
    assert test.y.tolist() == [2, 1]


def test_medmnist_never_unpickles(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "trapped"),))

    trap = numpy.array([Trap()], dtype=object)
    with pytest.raises(DataError, match="pathmnist.npz is corrupt"):
        read_medmnist(tmp_path, train_images=trap, train_labels=trap, test_images=trap, test_labels=trap)
    assert not (tmp_path / "trapped").exists()
    (tmp_path / "pathmnist.npz").write_bytes(b"PK broken")
    with pytest.raises(DataError, match="pathmnist.npz is corrupt"):
        medmnist.read(tmp_path, "pathmnist")


def test_decoded_images_are_cached(tmp_path):
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.png")
        Image.new("RGB", (8, 8), (i, 2 * i, 3 * i)).save(paths[-1])
    first = images.decode_cached(paths, 4, tmp_path, "set")
    assert first.shape == (3, 3, 4, 4)
    assert first[2, :, 0, 0].tolist() == [2, 4, 6]
    for path in paths:
        path.unlink()
    assert torch.equal(images.decode_cached(paths, 4, tmp_path, "set"), first)
    assert not list((tmp_path / "decoded").glob("tmp*"))


def test_an_unreadable_image_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="a.png is not readable as an image"):
        images.decode([tmp_path / "a.png"], None)


def test_the_environment_sets_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("FORGETLESS_DATA")
    assert data_folder().name == "data"


def test_digits_equal_those_of_scikit_learn():
    data = load_digits()
    train, test = digits.read()
    assert torch.equal(torch.cat([train.y, test.y]).sort()[0], torch.tensor(data.target).sort()[0])
    assert test.y.tolist() == data.target[::5].tolist()
    assert (test.x[:, 0].float() * 16 / 255).round().int().tolist() == data.images[::5].astype(int).tolist()
