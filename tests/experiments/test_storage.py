import errno
import os

import pytest

from forgetless.experiments.storage import check_folder, sweep_up, write_whole


def test_a_file_is_written_whole_and_replaced(tmp_path):
    file = tmp_path / "a" / "b.bin"
    write_whole(b"one", file)
    write_whole(b"two", file)
    assert file.read_bytes() == b"two"
    assert [path.name for path in file.parent.iterdir()] == ["b.bin"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_what_fails_leaves_the_file_before_and_names_it(call, code, tmp_path, monkeypatch):
    file = tmp_path / "b.bin"
    write_whole(b"one", file)

    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=f"b.bin could not be written: {os.strerror(code)}") as error:
        write_whole(b"two", file)
    assert error.value.errno == code
    assert file.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["b.bin"]


def test_old_partial_files_are_removed(tmp_path):
    old, new = tmp_path / "a.1-x.partial", tmp_path / "a.2-y.partial"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    sweep_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.2-y.partial"]


def test_files_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_whole(b"one", tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_written_into_is_named(tmp_path):
    check_folder(tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").is_dir()
    assert not list((tmp_path / "new" / "one").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"out is {tmp_path / 'file'}, where nothing can be written"):
        check_folder(tmp_path / "file")


def test_a_folder_of_an_object_store_works(tmp_path):
    upath = pytest.importorskip("upath", reason="universal-pathlib is not installed")
    folder = upath.UPath(f"file://{tmp_path}/new/runs")
    check_folder(folder)
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    file = upath.UPath(f"file://{tmp_path}/new/runs/id/record.json")
    write_whole(b"{}", file)
    assert (tmp_path / "new" / "runs" / "id" / "record.json").read_text() == "{}"
