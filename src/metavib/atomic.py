"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metavib.errors import UserError

try:
    import fcntl
except ModuleNotFoundError:  # Windows has none: there two processes are not told apart
    fcntl = None  # type: ignore[assignment]


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, rename into place, flush the folder."""
    with _disk_errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` for JSON; refuses what JSON can not say (NaN)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def make_folder(path: Path) -> None:
    """A folder to write into, with the folders around it."""
    with _disk_errors_in_words(path):
        path.mkdir(parents=True, exist_ok=True)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file; whoever reads it must bear a last line that was cut off."""
    with _disk_errors_in_words(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that a killed process left behind."""
    for temporary in folder.glob(".*.part"):
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file; a second process is refused. The lock of a killed process is gone with it."""
    with _disk_errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(refusal) from error
        yield


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _disk_errors_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "the disk is full. Free some space and call the same command again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "it may not be written. Choose another place with --out, or change the permissions"
        elif isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
            reason = (
                "a part of this path is not the folder that it should be. Choose another place with --out"
            )
        else:
            reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}.") from error
