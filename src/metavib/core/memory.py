"""Memory of the process: how much it may take, how much of that is free, and how torch's is kept.

What it may take is the least of four: what the machine has, what the control groups of the process allow (those
of a container or a batch system), what its own limits allow (`ulimit`), and what the user asked for by `--memory`
or METAVIB_MEMORY.
"""

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from metavib.core.control_groups import groups_of_process
from metavib.core.errors import UserError

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

VARIABLE = "METAVIB_MEMORY"
SHORT = 64 << 20  # bytes
UNKNOWN = 4 << 30  # where nothing says what there is: a modest machine

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NO_LIMIT = 2**60  # control groups of the first version write a number like this for none
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # what glibc's mallopt calls them
_PAGES_OF_ITS_OWN = 32 << 20  # bytes: as many as glibc allows


def bytes_of(text: str) -> int:
    """2GiB, 500MB, 1.5G or 4000000000, in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]i?)?b?", text.strip().lower(), re.ASCII)
    size = float(found[1]) * (_UNITS | _BINARY)[found[2] or ""] if found else 0.0
    if not 1 <= size < _NO_LIMIT:
        raise UserError(
            f"{text!r} is not an amount of memory: it must be a number and a unit, as 2GiB or 500MB."
        )
    return int(size)


def asked_for() -> int | None:
    """The most that the user lets the process take."""
    text = os.environ.get(VARIABLE, "").strip()
    return bytes_of(text) if text else None


@contextlib.contextmanager
def limited_to(text: str | None) -> Iterator[None]:
    """Within the block the process, and any that it starts, takes this limit; None leaves it as it is."""
    if text is None:
        asked_for()  # one that cannot be read is an error now, and not when the images are opened
        yield
        return
    bytes_of(text)
    former = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = text
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if former is not None:
            os.environ[VARIABLE] = former


def free_memory_of_host() -> int:
    """Bytes that the process may still take, at least 0."""
    taken = _taken()
    found = [_available(), free_in_groups(Path("/"))]
    if (limit := asked_for()) is not None:
        found.append(limit - taken.get("resident", 0))
    if resource:
        for which, name in ((resource.RLIMIT_AS, "mapped"), (resource.RLIMIT_DATA, "data")):
            most = resource.getrlimit(which)[0]
            if most != resource.RLIM_INFINITY:
                found.append(most - taken.get(name, 0))
    known = [value for value in found if value is not None]
    return max(0, min(known)) if known else UNKNOWN


def give_back_if_short() -> None:
    """Where little is left of what the process may take, give what was freed back to the system.

    `keep_freed_memory` lets freed memory lie, in holes between what is kept; they must not count when a limit is
    near. Whoever reads images as they are needed calls this between two batches.
    """
    if sys.platform == "linux" and free_memory_of_host() < max(SHORT, taken() // 8):
        give_back()


def give_back() -> None:
    """Give what was freed back to the system, where glibc has kept it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(0)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there was too little memory: Python's own, or torch's of a CPU or a GPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def taken() -> int:
    """The bytes that are resident now; 0 where that is unknown."""
    return _taken().get("resident", 0)


def peak() -> int | None:
    """The most bytes that were resident at a time so far, pages of mapped files too; None where unknown."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return 1024 * int(found[1])
    return None


def _taken() -> dict[str, int]:
    try:
        pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
    except (OSError, ValueError):
        return {}
    size = os.sysconf("SC_PAGE_SIZE")
    return {"mapped": pages[0] * size, "resident": pages[1] * size, "data": pages[5] * size}


def _available() -> int | None:
    """The memory that the machine can give without swapping, page cache included, since it gives way."""
    with contextlib.suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if found:
            return 1024 * int(found[1])
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def free_in_groups(root: Path) -> int | None:
    """The memory that the control groups of the process leave it; None where none of them limits it."""
    groups = groups_of_process(root, "memory")
    found = [_free_in(folder, "total_" if first_version else "") for folder, first_version in groups]
    return min((free for free in found if free is not None), default=None)


def _free_in(group: Path, prefix: str) -> int | None:
    """The memory that one control group leaves: its limit, less what is used and is not the page cache."""
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if prefix else ("memory.max", "memory.current")
    try:
        limit, used = (int((group / name).read_text()) for name in names)
        files = re.findall(
            rf"^{prefix}(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE
        )
    except (OSError, ValueError):  # "max" is not a number
        return None
    return None if limit >= _NO_LIMIT else limit - used + sum(map(int, files))


def keep_freed_memory() -> None:
    """Tell glibc not to give large blocks back to the system.

    Otherwise every activation of every step is fresh memory, and its first touch costs more than the arithmetic:
    a step of the digit network took about twice as long. Elsewhere than on Linux nothing happens.
    """
    _tell_glibc({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20})


def give_large_blocks_back() -> None:
    """Take back what `keep_freed_memory` told glibc of large blocks: they go to the system when they are freed.

    A server waits most of the time, and what it kept for the next large image nobody else could use. The
    activations of a batch are smaller and stay: where blocks of 4 MiB went back too, arrays of digits were
    answered at two thirds of the rate.
    """
    _tell_glibc({_MMAP_MAX: 65_536, _MMAP_THRESHOLD: _PAGES_OF_ITS_OWN})
    give_back()  # or large blocks would be cut from what was kept so far


def _tell_glibc(options: dict[int, int]) -> None:
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        for name, value in options.items():
            mallopt(name, value)
