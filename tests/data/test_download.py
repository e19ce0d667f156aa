"""Downloads from a real server on this machine, and archives that are corrupt or hostile."""

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forgetless.data import download
from forgetless.data.download import SOURCES, Source
from forgetless.data.readers import mnist
from forgetless.data.readers.files import DataError, md5


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


def test_a_download_is_stored_and_checked(server, tmp_path, monkeypatch):
    folder, address = server
    (folder / "a.npz").write_bytes(b"content")
    monkeypatch.setitem(SOURCES, "a", Source("a", 1, {f"{address}a.npz": digest(b"content")}, "sub"))
    download.get("a", tmp_path / "data", progress=False)
    assert (tmp_path / "data/sub/a.npz").read_bytes() == b"content"


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path, monkeypatch):
    folder, address = server
    (folder / "a.npz").write_bytes(b"tampered")
    monkeypatch.setitem(SOURCES, "a", Source("a", 1, {f"{address}a.npz": digest(b"content")}))
    with pytest.raises(DataError, match=r"the download of .*a\.npz is corrupt"):
        download.get("a", tmp_path / "data", progress=False)
    assert not (tmp_path / "data/a.npz").exists()


def test_a_full_disk_is_reported_as_such(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")

    def full(*given, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(OSError, match="No space left on device"):
        download.get("mnist", tmp_path, progress=False)


def test_a_missing_network_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "a", Source("a", 1, {"http://127.0.0.1:9/a.npz": digest(b"")}))
    with pytest.raises(DataError, match="downloading .* failed .* check the network connection"):
        download.get("a", tmp_path, progress=False)


def tar_of(members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def test_an_archive_is_unpacked_and_removed(server, tmp_path, monkeypatch):
    folder, address = server
    data = tar_of([(tarfile.TarInfo("set/a.bin"), b"one"), (tarfile.TarInfo("set/b/c.bin"), b"two")])
    (folder / "set.tar.gz").write_bytes(data)
    monkeypatch.setitem(SOURCES, "set", Source("set", 1, {f"{address}set.tar.gz": digest(data)}, archive=True))
    download.get("set", tmp_path / "data", progress=False)
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
def test_a_tar_outside_its_folder_is_refused(member, tmp_path):
    archive = tmp_path / "bad.tar.gz"
    archive.write_bytes(tar_of([(tarfile.TarInfo("set/good"), b"x"), (member, b"")]))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match="is refused"):
        download.unpack(archive, target)
    assert list(target.iterdir()) == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["../outside", "/absolute", "set/../../outside", "C:/windows", "..\\outside"])
def test_a_zip_outside_its_folder_is_refused(name, tmp_path):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr(name, "x")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match="is refused: it holds .* which lies outside of the target folder"):
        download.unpack(archive, target)
    assert list(target.iterdir()) == []


def test_a_zip_with_a_link_is_refused(tmp_path):
    archive = tmp_path / "bad.zip"
    info = zipfile.ZipInfo("set/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="is refused: it holds .* which is not a plain file"):
        download.unpack(archive, tmp_path)


def test_problems_names_missing_and_corrupt_files(tmp_path):
    assert download.problems("organamnist", tmp_path) == ["organamnist.npz is missing"]
    (tmp_path / "organamnist.npz").write_bytes(b"x")
    wanted = SOURCES["organamnist"].contents["organamnist.npz"]
    assert download.problems("organamnist", tmp_path) == [f"organamnist.npz is corrupt: its md5 is not {wanted}"]
    assert download.problems("pacs", tmp_path)[0] == "PACS/sketch holds 0 images; it must hold 3929"
    assert md5(tmp_path / "organamnist.npz") == digest(b"x")


def test_manual_downloads_are_explained(tmp_path):
    with pytest.raises(DataError, match="pacs cannot be downloaded: .*PACS/<domain>/<class>/<image>"):
        download.get("pacs", tmp_path)


@pytest.mark.skipif("FORGETLESS_DATA" not in os.environ, reason="FORGETLESS_DATA is not set")
@pytest.mark.parametrize("name", list(SOURCES))
def test_the_real_data_is_intact(name):
    folder = Path(os.environ["FORGETLESS_DATA"])
    if not any((folder / path).exists() for path in [*SOURCES[name].contents, *SOURCES[name].folders]):
        pytest.skip(f"{name} is not in {folder}")
    assert download.problems(name, folder) == []


def test_decompression_bombs_are_refused(tmp_path, mnist_folder, monkeypatch):
    monkeypatch.setattr("forgetless.data.download.LIMIT", 10_000)
    bundle = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("data/zeros", bytes(20_000))
    with pytest.raises(DataError, match="bomb.zip is refused: it unpacks to more than 0 GiB"):
        download.unpack(bundle, tmp_path)
    tape = tmp_path / "bomb.tar.gz"
    with tarfile.open(tape, "w:gz") as packed:
        for name in ("a", "b"):
            info = tarfile.TarInfo(f"data/{name}")
            info.size = 6_000
            packed.addfile(info, io.BytesIO(bytes(6_000)))
    with pytest.raises(DataError, match=r"bomb.tar.gz is refused: it unpacks to more than 0 GiB"):
        download.unpack(tape, tmp_path)
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr("forgetless.data.readers.mnist.LIMIT", 20)
    with pytest.raises(DataError, match="more than 20 bytes"):
        mnist.read(mnist_folder)


def test_corrupt_and_hostile_files_are_read_or_refused(tmp_path):
    """`benchmarks/fuzz.py` with fewer files: no other error, nothing outside, no code executed."""
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    call = [sys.executable, script, "--count", "400", "--seed", "1", "--out", tmp_path / "found.json"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["crashes"], found["written_outside"], found["code_executed"]) == (0, 0, False), done.stdout
    assert sum(sum(count.values()) for count in found["by_kind"].values()) == 400
