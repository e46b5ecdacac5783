"""The door for files that others made: what goes through it, what does not, and that there is no other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from metavib.core import untrusted
from metavib.core.untrusted import DoorError, json_from, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to look into, and a secret beside it."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "folder"


def test_a_regular_file_is_read(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    assert read(folder / "file", 7) == b"content"
    assert read(folder / "file", 7, folder) == b"content"


def test_a_missing_file_is_missing(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(folder / "file", 7, folder)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "a socket": lambda path: os.mknod(path, 0o140600),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once(folder: Path, kind: str) -> None:
    SPECIAL[kind](folder / "file")
    for mode in ("rb", "a", "w"):
        with (
            pytest.raises(DoorError, match="not a regular file"),
            open(folder / "file", mode, opener=untrusted.opener),
        ):
            pass
    with pytest.raises(DoorError, match="not a regular file"):
        read(folder / "file", 100)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("x")
    regular = os.stat(folder / "file")
    (folder / "file").unlink()
    os.mkfifo(folder / "file")
    monkeypatch.setattr(os, "stat", lambda path, **_: regular)  # as it was when it was looked at first
    with pytest.raises(DoorError, match="not a regular file"):
        read(folder / "file", 100)


def test_a_file_over_the_limit_is_not_read(folder: Path) -> None:
    with open(folder / "file", "wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on the disk
    with pytest.raises(DoorError, match="too large"):
        read(folder / "file", 1 << 30)


@pytest.mark.parametrize("way", ["file", "absolute", "folder", "twice"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, way: str) -> None:
    path = folder / "file"
    if way == "file":
        path.symlink_to("../secret")
    elif way == "absolute":
        path.symlink_to(folder.parent / "secret")
    elif way == "folder":
        (folder / "up").symlink_to("..")
        path = folder / "up" / "secret"
    else:
        (folder / "inner" / "other").symlink_to("../../secret")
        path.symlink_to("inner/other")
    with pytest.raises(DoorError, match="leads out of"):
        read(path, 100, folder)
    assert read(path, 100) == b"secret"  # a file that the user has named may be a link


def test_a_link_within_the_folder_and_a_link_to_the_folder_are_followed(folder: Path) -> None:
    (folder / "inner" / "file").write_text("content")
    (folder / "link").symlink_to("inner/file")
    (folder.parent / "alias").symlink_to("folder")
    alias = folder.parent / "alias"
    assert read(alias / "link", 100, alias) == read(folder / "link", 100, alias) == b"content"


def test_where_the_kernel_does_not_tell_links_are_found_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(path: str) -> str:
        raise FileNotFoundError

    (folder / "file").write_text("content")
    (folder / "link").symlink_to("../secret")
    readlink = os.readlink
    monkeypatch.setattr(
        os, "readlink", lambda path, **own: unknown(path) if "/proc/" in str(path) else readlink(path, **own)
    )
    assert read(folder / "file", 100, folder) == b"content"
    with pytest.raises(DoorError, match="leads out of"):
        read(folder / "link", 100, folder)


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    (folder / "file").symlink_to("../secret")
    for mode in ("w", "a"):
        with pytest.raises(DoorError, match="link"), open(folder / "file", mode, opener=untrusted.opener):
            pass
    assert (folder.parent / "secret").read_text() == "secret"


# --- JSON -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["9" * 400, "-" + "9" * 5000, "1e400", "NaN", "-Infinity", "[" * 100_000, "{", '{"a": 1e999}', "\x00"],
)
def test_what_is_no_json_or_no_finite_number_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_from(text)


def test_numbers_come_back_exactly() -> None:
    values = [0, -1, 2**63, 10**30, 0.1, 1e308, 5e-324, True, None]
    assert json_from(json.dumps(values)) == values
