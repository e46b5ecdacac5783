"""Files are there whole or not at all."""

import errno
import fcntl
import os
import resource

import pytest

from metavib.core import atomic
from metavib.core.errors import UserError


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


def test_a_lock_whose_file_was_removed_does_not_count(tmp_path):
    path = tmp_path / "folder" / "lock"

    def lock():
        return atomic.locked(path, "taken")

    with lock():
        path.unlink()
        with lock(), pytest.raises(UserError, match="taken"), lock():
            pass


def test_a_lock_file_that_vanishes_again_and_again_is_somebody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "samestat", lambda one, other: False)  # it is always another one by then
    with pytest.raises(UserError, match="taken"), atomic.locked(tmp_path / "lock", "taken"):
        pass


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_regular_file_is_neither_locked_nor_added_to_nor_waited_for(tmp_path, kind):
    path, outside = tmp_path / "file", tmp_path / "outside"
    outside.write_text("mine")
    {"link": lambda: path.symlink_to(outside), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    wrong = "link" if kind == "link" else "not a regular file"
    with pytest.raises(UserError, match=wrong), atomic.locked(path, "taken"):
        pass
    with pytest.raises(UserError, match=wrong):
        atomic.append_line(path, "more")
    assert outside.read_text() == "mine"


def test_a_file_system_without_locks_is_not_taken_for_a_second_process(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="No locks available"), atomic.locked(tmp_path / "lock", "taken"):
        pass
    atomic.write_bytes(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_a_living_one_writes_stays(tmp_path):
    abandoned, held = tmp_path / ".file.aaaaaaaa.part", tmp_path / ".file.bbbbbbbb.part"
    others = [tmp_path / name for name in (".file2.aaaaaaaa.part", ".file.part", "file.aaaaaaaa.part")]
    for path in (abandoned, held, *others):
        path.touch()
    with held.open() as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        atomic.write_bytes(tmp_path / "file", b"content")
    assert set(tmp_path.iterdir()) == {tmp_path / "file", held, *others}


def test_a_writer_whose_file_was_taken_for_abandoned_writes_another(tmp_path, monkeypatch):
    flock = fcntl.flock

    def remove_first(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / os.readlink(f"/proc/self/fd/{descriptor}")).unlink()

    monkeypatch.setattr(fcntl, "flock", remove_first)
    atomic.write_bytes(tmp_path / "file", b"content")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"content")]


def test_a_process_is_allowed_as_many_locks_as_it_needs():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        atomic.allow_locks(10)
        enough = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        atomic.allow_locks(5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (enough, hard)
        assert 10 < enough <= 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    atomic.make_folder(tmp_path / "a" / "b")
    atomic.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not the folder that it should be"):
        atomic.make_folder(tmp_path / "file" / "b")
