import errno
import os

import pytest

from forgetless.storage import write_whole


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
