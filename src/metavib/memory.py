"""Memory of the process: what torch frees on the CPU is kept for the next step."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # the names that glibc's mallopt has for them


def keep_freed_memory() -> None:
    """Tell glibc not to give large blocks back to the system.

    Otherwise every activation of every step is fresh memory, and its first touch costs more than the arithmetic:
    a step of the digit network took about twice as long. Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 64 << 20)
