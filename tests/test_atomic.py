"""Files are there whole or not at all."""

import errno
import os

import pytest

from metavib import atomic
from metavib.errors import UserError


def test_what_is_written_is_there_and_nothing_else(tmp_path):
    atomic.write_bytes(tmp_path / "new" / "file", b"content")
    assert (tmp_path / "new" / "file").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "may not be written"),
        (errno.EROFS, "may not be written"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_failed_write_leaves_the_former_file_and_says_why(tmp_path, monkeypatch, number, said):
    atomic.write_bytes(tmp_path / "file", b"former")

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=said):
        atomic.write_bytes(tmp_path / "file", b"later")
    assert (tmp_path / "file").read_bytes() == b"former"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ctrl_c_while_writing_leaves_the_former_file(tmp_path, monkeypatch):
    atomic.write_bytes(tmp_path / "file", b"former")

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(tmp_path / "file", b"later")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"former")]


def test_json_refuses_what_json_cannot_say_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(tmp_path / "file", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="--out"):
        atomic.write_bytes(tmp_path / "file" / "below", b"content")


def test_lines_are_appended(tmp_path):
    atomic.append_line(tmp_path / "log", "one")
    atomic.append_line(tmp_path / "log", "two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_only_temporary_files_are_removed_as_leftovers(tmp_path):
    for name in (".file.abc.part", "file", ".hidden", "movie.part"):
        (tmp_path / name).touch()
    atomic.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "file", "movie.part"]


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path):
    def lock():
        return atomic.locked(tmp_path / "lock", "taken")

    with lock(), pytest.raises(UserError, match="taken"), lock():
        pass
    with lock():
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    atomic.make_folder(tmp_path / "a" / "b")
    atomic.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not the folder that it should be"):
        atomic.make_folder(tmp_path / "file" / "b")
