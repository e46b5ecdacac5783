"""Pillow's libtiff, kept from writing to stderr itself: what it finds wrong becomes Pillow's exception."""

from __future__ import annotations

import contextlib
import ctypes
import functools


@functools.cache
def silence_libtiff() -> None:
    """Take libtiff's own handlers of errors and warnings away, once for the process.

    They print lines from C that no Python code can catch. Where Pillow has libtiff inside itself (Windows), its
    functions have no names to be found by, and nothing happens.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        from PIL import _imaging

        library = ctypes.CDLL(_imaging.__file__)  # names are looked up in what it is linked to as well
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            handler = getattr(library, name)
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            handler(None)
