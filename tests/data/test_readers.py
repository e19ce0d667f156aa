"""Readers on small files made here, damaged ones included; the downloader against a real server on this machine."""

import errno
import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from forgetless.data import download
from forgetless.data.download import SOURCES, Source
from forgetless.data.readers import cifar, digits, images, medmnist, mnist
from forgetless.data.readers.files import DataError, md5, root


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist_folder(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 3)):
        x = numpy.arange(count * 4, dtype=numpy.uint8).reshape(count, 2, 2)
        y = numpy.arange(count, dtype=numpy.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    return tmp_path


def test_mnist_is_read_packed_or_not(mnist_folder):
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
        (lambda data: gzip.compress(b"\1\2\3\4rest"), "no idx header"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "23 bytes of values, its header says 24"),
        (lambda data: gzip.compress(b"\0\0\x08\x03\0"), "header cut off"),
    ],
)
def test_damaged_mnist_names_the_file_and_what_to_do(mnist_folder, damage, match):
    path = mnist_folder / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.gz is damaged \({match}.*forgetless data get mnist"):
        mnist.read(mnist_folder)


def test_missing_files_say_what_to_do(tmp_path):
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
    with pytest.raises(DataError, match=r"data_batch_3.bin is damaged \(30730001 bytes, must be 30730000\)"):
        cifar.read(tmp_path)
    rows[0, 0] = 10
    rows.tofile(folder / "data_batch_3.bin")
    with pytest.raises(DataError, match="label 10, must be 0 to 9"):
        cifar.read(tmp_path)


def med(tmp_path, **arrays):
    numpy.savez(tmp_path / "pathmnist.npz", **arrays)
    return medmnist.read(tmp_path, "pathmnist")


def test_medmnist_takes_train_and_test(tmp_path):
    grey = numpy.zeros((3, 4, 4), numpy.uint8)
    colour = numpy.arange(2 * 4 * 4 * 3, dtype=numpy.uint8).reshape(2, 4, 4, 3)
    labels = numpy.array([[2], [1]], numpy.uint8)
    train, test = med(
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
    with pytest.raises(DataError, match="pathmnist.npz is damaged"):
        med(tmp_path, train_images=trap, train_labels=trap, test_images=trap, test_labels=trap)
    assert not (tmp_path / "trapped").exists()
    (tmp_path / "pathmnist.npz").write_bytes(b"PK broken")
    with pytest.raises(DataError, match="pathmnist.npz is damaged"):
        medmnist.read(tmp_path, "pathmnist")


def test_decoded_images_are_kept_and_read_again(tmp_path):
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.png")
        Image.new("RGB", (8, 8), (i, 2 * i, 3 * i)).save(paths[-1])
    first = images.cached(tmp_path, "set", {"train": paths}, 4)["train"]
    assert first.shape == (3, 3, 4, 4)
    assert first[2, :, 0, 0].tolist() == [2, 4, 6]
    for path in paths:
        path.unlink()
    assert torch.equal(images.cached(tmp_path, "set", {"train": paths}, 4)["train"], first)
    assert not list((tmp_path / "decoded").glob("tmp*"))


def test_an_image_that_is_none_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="a.png is not readable as an image"):
        images.decode([tmp_path / "a.png"], None)


def test_the_folder_is_the_one_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FORGETLESS_DATA", str(tmp_path))
    assert root() == tmp_path
    monkeypatch.delenv("FORGETLESS_DATA")
    assert root().name == "data"


# ---- downloads ------------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{httpd.server_port}/"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def digest(data):
    return hashlib.md5(data).hexdigest()


def test_a_file_is_fetched_and_checked(server, tmp_path):
    folder, address = server
    (folder / "a.npz").write_bytes(b"content")
    source = Source("a", 1, ((f"{address}a.npz", digest(b"content"), "sub/a.npz"),))
    download.get("a", tmp_path / "data", progress=False, source=source)
    assert (tmp_path / "data/sub/a.npz").read_bytes() == b"content"


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    folder, address = server
    (folder / "a.npz").write_bytes(b"tampered")
    source = Source("a", 1, ((f"{address}a.npz", digest(b"content"), "a.npz"),))
    with pytest.raises(DataError, match=r"what .*a\.npz gave is damaged"):
        download.get("a", tmp_path / "data", progress=False, source=source)
    assert not (tmp_path / "data/a.npz").exists()


def test_a_full_disk_is_not_taken_for_a_missing_network(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")

    def full(*given, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(OSError, match="No space left on device"):
        download.get("mnist", tmp_path, progress=False)


def test_no_network_is_said(tmp_path):
    source = Source("a", 1, (("http://127.0.0.1:9/a.npz", digest(b""), "a.npz"),))
    with pytest.raises(DataError, match=r"could not be fetched .* is there a network\?"):
        download.get("a", tmp_path, progress=False, source=source)


def tar_of(members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def test_an_archive_is_unpacked_and_removed(server, tmp_path):
    folder, address = server
    data = tar_of([(tarfile.TarInfo("set/a.bin"), b"one"), (tarfile.TarInfo("set/b/c.bin"), b"two")])
    (folder / "set.tar.gz").write_bytes(data)
    source = Source("set", 1, ((f"{address}set.tar.gz", digest(data), ""),), archive=True)
    download.get("set", tmp_path / "data", progress=False, source=source)
    assert (tmp_path / "data/set/b/c.bin").read_bytes() == b"two"
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["set"]


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("/absolute"),
        tarfile.TarInfo("set/../../outside"),
        link("set/link", "/etc/passwd", tarfile.SYMTYPE),
        link("set/hard", "../../outside", tarfile.LNKTYPE),
        link("set/device", "", tarfile.CHRTYPE),
    ],
    ids=lambda info: info.name,
)
def test_a_tar_that_reaches_outside_is_refused(member, tmp_path):
    archive = tmp_path / "bad.tar.gz"
    archive.write_bytes(tar_of([(tarfile.TarInfo("set/good"), b"x"), (member, b"")]))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match="refused"):
        download.unpack(archive, target)
    assert list(target.iterdir()) == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["../outside", "/absolute", "set/../../outside", "C:/windows", "..\\outside"])
def test_a_zip_that_reaches_outside_is_refused(name, tmp_path):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr(name, "x")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match="outside; refused"):
        download.unpack(archive, target)
    assert list(target.iterdir()) == []


def test_a_zip_with_a_link_is_refused(tmp_path):
    archive = tmp_path / "bad.zip"
    info = zipfile.ZipInfo("set/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="holds a link"):
        download.unpack(archive, tmp_path)


def test_problems_names_what_is_missing_or_damaged(tmp_path, mnist_folder):
    assert download.problems("organamnist", tmp_path) == ["organamnist.npz is missing"]
    (tmp_path / "organamnist.npz").write_bytes(b"x")
    wanted = SOURCES["organamnist"].contents["organamnist.npz"]
    assert download.problems("organamnist", tmp_path) == [f"organamnist.npz is damaged: its md5 is not {wanted}"]
    assert download.problems("pacs", tmp_path)[0] == "PACS/sketch holds 0 images, must be 3929"
    assert md5(tmp_path / "organamnist.npz") == digest(b"x")


def test_what_must_be_fetched_by_hand_says_so(tmp_path):
    with pytest.raises(DataError, match="pacs has no address to fetch it from: .*PACS/<domain>/<class>/<image>"):
        download.get("pacs", tmp_path)


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA names no folder with the real data")
@pytest.mark.parametrize("name", list(SOURCES))
def test_the_real_data_is_whole(name):
    folder = Path(os.environ["FORGETLESS_DATA"])
    if not any((folder / path).exists() for path in [*SOURCES[name].contents, *SOURCES[name].folders]):
        pytest.skip(f"{name} is not in {folder}")
    assert download.problems(name, folder) == []


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, mnist_folder, monkeypatch):
    monkeypatch.setattr("forgetless.data.download.LIMIT", 10_000)
    bundle = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("data/zeros", bytes(20_000))
    with pytest.raises(DataError, match="bomb.zip unpacks to more than 0 GiB; refused"):
        download.unpack(bundle, tmp_path)
    tape = tmp_path / "bomb.tar.gz"
    with tarfile.open(tape, "w:gz") as packed:
        for name in ("a", "b"):
            info = tarfile.TarInfo(f"data/{name}")
            info.size = 6_000
            packed.addfile(info, io.BytesIO(bytes(6_000)))
    with pytest.raises(DataError, match=r"bomb.tar.gz unpacks to more than 0 GiB; refused"):
        download.unpack(tape, tmp_path)
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr("forgetless.data.readers.mnist.LIMIT", 20)
    with pytest.raises(DataError, match="more than 20 bytes"):
        mnist.read(mnist_folder)


def test_damaged_and_hostile_files_are_read_or_refused_and_nothing_else(tmp_path):
    """`benchmarks/fuzz.py` with fewer files: no other error, nothing outside, no code executed."""
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    call = [sys.executable, script, "--count", "800", "--seed", "1", "--out", tmp_path / "found.json"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["crashes"], found["written_outside"], found["code_executed"]) == (0, 0, False), done.stdout
    assert sum(sum(count.values()) for count in found["by_kind"].values()) == 800


@pytest.mark.parametrize("with_file", [True, False])
def test_the_digits_are_scikit_learns(with_file, monkeypatch):
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: exists(path) and (with_file or path.name != "digits.csv.gz"))
    data = load_digits()
    train, test = digits.read()
    assert torch.equal(torch.cat([train.y, test.y]).sort()[0], torch.tensor(data.target).sort()[0])
    assert test.y.tolist() == data.target[::5].tolist()
    assert (test.x[:, 0].float() * 16 / 255).round().int().tolist() == data.images[::5].astype(int).tolist()
