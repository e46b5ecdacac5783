"""Rows of equal length in a file, read into memory that is there.

A memory map would do the same, but every page of it that was touched counts as resident until the system wants it
back, so that a process with a limit is killed for what it only read; and a file that became shorter kills it too.
Here only what is read at the moment is in memory, and the system's page cache, which gives way, keeps the rest.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from typing import final

import numpy as np

from metavib.core.errors import UserError
from metavib.core.shapes import Int
from metavib.core.untrusted import opener

_TOGETHER = 512  # rows in one call; the system takes 1,024 at most

_opened: weakref.WeakValueDictionary[tuple[str, int, int], RowFile] = weakref.WeakValueDictionary()
_opening = threading.Lock()


@final
class RowFile:
    """The file under a memory map, opened once for all who read it."""

    def __init__(self, path: str, offset: int, row_bytes: int, rows: int) -> None:
        self.path, self.offset, self.row_bytes = path, offset, row_bytes
        self._descriptor = opener(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        if os.fstat(self._descriptor).st_size < offset + rows * row_bytes:
            raise self._too_short()

    def read(
        self, rows: Int[np.ndarray, "count"], into: np.ndarray, places: Int[np.ndarray, "count"]
    ) -> None:
        """Put each of the rows into its place along the first axis of a contiguous array."""
        if not len(rows):
            return
        length = self.row_bytes
        memory = into.reshape(-1).view(np.uint8).data
        order = np.argsort(rows, kind="stable")  # a disk likes to go forward
        rows, places = rows[order], places[order]
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1  # rows beside one another are read at once
        starts = np.concatenate([[0], cuts, [len(rows)]])
        runs = [
            (first, min(first + _TOGETHER, int(end)))
            for begin, end in itertools.pairwise(starts)
            for first in range(int(begin), int(end), _TOGETHER)
        ]
        for first, last in runs:  # all are under way before the first is waited for
            self._announce(self.offset + int(rows[first]) * length, (last - first) * length)
        for first, last in runs:
            buffers = [memory[place * length : (place + 1) * length] for place in places[first:last].tolist()]
            start = self.offset + int(rows[first]) * length
            if os.preadv(self._descriptor, buffers, start) != (last - first) * length:
                for number, buffer in enumerate(buffers):
                    self._read_whole(buffer, start + number * length)

    def _announce(self, start: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def _read_whole(self, buffer: memoryview, start: int) -> None:
        while len(buffer):
            count = os.preadv(self._descriptor, [buffer], start)
            if count == 0:
                raise self._too_short()
            buffer, start = buffer[count:], start + count

    def _too_short(self) -> UserError:
        return UserError(f"{self.path} is shorter than it was: something changed it. Start again.")


def file_under(array: np.ndarray) -> RowFile | None:
    """The file whose rows a memory map shows; None for other arrays, and where the system cannot read so."""
    if not isinstance(array, np.memmap) or not isinstance(array.base, mmap.mmap):
        return None  # a part of a map says the offset of the whole
    if not array.flags.c_contiguous or not array.size or not hasattr(os, "preadv"):
        return None
    path, row_bytes = str(array.filename), array.nbytes // len(array)
    with _opening:
        found = _opened.get((path, array.offset, row_bytes))
        if found is None:
            found = RowFile(path, array.offset, row_bytes, len(array))
            _opened[path, array.offset, row_bytes] = found
    return found
