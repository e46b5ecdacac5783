"""The door for files that somebody else may have made.

A model, a run or a folder of images may come from anywhere, and so may the files in it. Every one of them is
opened here. Only regular files are read: a pipe would wait for ever, and a device has no end. What is larger than
its limit is not read at all. A file that was looked for by its name in a directory must lie in that directory: a
link that leads out of it is refused. A file or a folder that the user has named may be a link.
"""

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, final

RECORD_BYTES = 64 << 20  # of a record: a description, results, settings
TABLE_BYTES = 1 << 30  # of a table with a line for each image or step
# What Windows does not have, it does not need.
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NOT_THROUGH_LINKS = getattr(os, "O_NOFOLLOW", 0)
_LONGEST_NUMBER = 300  # digits: what has more is not a float


@final
class DoorError(OSError):
    """A file that is not opened, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)

    def __str__(self) -> str:
        return str(self.strerror)


def read(path: Path, most: int, *within: Path) -> bytes:
    """Read the file as it was when it was opened, `most` bytes at most.

    Where directories are given, it must really lie in one of them, links followed. OSError says what is wrong.
    """
    with open(path, "rb", opener=opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DoorError(f"too large ({size:,} bytes; the limit is {most:,})")
        if within:
            _require_inside(file.fileno(), path, within)
        return file.read(size) or b""


def read_text(path: Path, most: int, *within: Path) -> str:
    """The content of the file, as `read` gives it, decoded from UTF-8."""
    return read(path, most, *within).decode()


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: regular files only, without waiting. What is written is never a link.

    It is looked at twice. Before it is opened, because to open some devices does something; and after, because
    another file may have come to its place.
    """
    try:
        _require_regular(os.stat(path))
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    if flags & (os.O_WRONLY | os.O_RDWR):
        if os.path.islink(path):
            raise DoorError("a link, and nothing is written through links")
        flags |= _NOT_THROUGH_LINKS
    descriptor = os.open(path, flags | _WITHOUT_WAITING, 0o666)
    try:
        _require_regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def leads_out(path: Path, folder: Path) -> bool:
    """Whether this path below a folder is, by links, somewhere else."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def json_from(content: bytes | str) -> Any:
    """The JSON value, in which every number is finite. ValueError says what is wrong."""
    try:
        return json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def json_in(path: Path, most: int, *within: Path) -> Any:
    """`json_from` of a file. OSError or ValueError says what is wrong."""
    return json_from(read(path, most, *within))


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DoorError("not a regular file")


def _require_inside(descriptor: int, path: Path, folders: tuple[Path, ...]) -> None:
    place = _place_of(descriptor, path)
    if place is None or not any(place.is_relative_to(os.path.realpath(folder)) for folder in folders):
        raise DoorError(f"a link leads out of {folders[0]}: put the file itself there")


def _place_of(descriptor: int, path: Path) -> Path | None:
    """Where an open file lies, links followed; None where that changed since it was opened."""
    try:
        # The kernel knows, whatever is moved meanwhile.
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        place = os.path.realpath(path)
        same = os.path.samestat(os.stat(place, follow_symlinks=False), os.fstat(descriptor))
        return Path(place) if same else None


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is not finite")
    return number
