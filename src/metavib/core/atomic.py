"""Files that are there whole or not at all, whatever happens while they are written."""

import contextlib
import errno
import glob
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from metavib.core.errors import UserError
from metavib.core.untrusted import DoorError, opener

try:
    import fcntl
    import resource
except ModuleNotFoundError:  # Windows has none: there two processes are not told apart
    fcntl = resource = None  # type: ignore[assignment]

_ROUNDS = 100  # in which a lock file can vanish under our hands before we take it for somebody else's
_OTHER_FILES = 256  # that a process may have open beside its locks


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, rename into place, flush the folder."""
    with disk_errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        descriptor, temporary = _temporary_file(path)
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
    """Write text as `write_bytes` writes bytes."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` for JSON; refuses what JSON can not say (NaN)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def make_folder(path: Path) -> None:
    """A folder to write into, with the folders around it."""
    with disk_errors_in_words(path):
        path.mkdir(parents=True, exist_ok=True)


def open_to_append(path: Path) -> IO[str]:
    """A file to add text to; it may not be there yet."""
    with disk_errors_in_words(path):
        return open(path, "a", encoding="utf-8", opener=opener)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file; whoever reads it must bear a last line that was cut off."""
    with disk_errors_in_words(path), open_to_append(path) as file:
        file.write(line + "\n")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that a killed process left behind."""
    for temporary in folder.glob(".*.part"):
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file; a second process is refused. The lock of a killed process is gone with it.

    Whoever holds it may remove the file: a lock on a file that is gone does not count.
    """
    with disk_errors_in_words(path):
        held = (_lock(path, refusal) for _ in range(_ROUNDS))
        file = next((file for file in held if file is not None), None)
    if file is None:
        raise UserError(refusal)
    with file:
        yield


def allow_locks(count: int) -> None:
    """A lock is an open file: where so many are more than this process may have, it is allowed more."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + _OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _lock(path: Path, refusal: str) -> IO[str] | None:
    """The lock file, held; None where its last owner removed it while we opened it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open(path, "a", opener=opener))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return None
        except BlockingIOError as error:
            raise UserError(refusal) from error
        except FileNotFoundError:
            return None
        opened.pop_all()
        return file


def _temporary_file(path: Path) -> tuple[int, str]:
    """A file beside this one, locked while its writer lives."""
    while True:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        if fcntl is None:
            return descriptor, temporary
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return descriptor, temporary
        os.close(descriptor)  # taken for abandoned before it was locked


def _remove_abandoned(path: Path) -> None:
    """Delete what killed writers of this very file left behind, which nobody holds."""
    if fcntl is None:
        return
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.????????.part"):
        with contextlib.suppress(OSError), open(temporary, "rb", opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def disk_errors_in_words(path: Path) -> Iterator[None]:
    """Turn errors of the disk while this path is written into a `UserError` of one line."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DoorError):
            reason = str(error)
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
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
