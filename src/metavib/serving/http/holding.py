"""Bytes of a body as they come, held so that all of them go back to the system once they are not needed."""

from __future__ import annotations

import mmap

BLOCK = 262_144  # bytes


class Held:
    """A few bytes lie where all small things lie; many lie in blocks of pages of their own.

    Large pieces of the heap that grow and go in any order leave holes: with twelve bodies of 60 megabytes at a
    time the process took five times what they held.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._blocks: list[mmap.mmap] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        """These come next."""
        if not self._blocks and self._size + len(data) <= BLOCK:
            if data:
                self._pieces.append(data)
                self._size += len(data)
            return
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._size = 0
        for piece in (*pieces, data):
            self._write(memoryview(piece))

    def content(self) -> bytes:
        """All that came, in one."""
        if self._blocks:
            return b"".join(self._filled())
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def handed_over(self) -> bytes | mmap.mmap:
        """All that came, in one, and nothing is held then. Blocks go as they are copied: there are never two."""
        if not self._blocks:
            return self.content()
        whole, blocks, size = mmap.mmap(-1, self._size), self._blocks, self._size
        self._blocks, self._size = [], 0
        for block in blocks:
            with memoryview(block) as view, view[: size - whole.tell()] as filled:
                whole.write(filled)
            block.close()
        return whole

    def _write(self, data: memoryview) -> None:
        while data:
            place = self._size % BLOCK
            if not place:
                self._blocks.append(mmap.mmap(-1, BLOCK))
            some = data[: BLOCK - place]
            self._blocks[-1][place : place + len(some)] = some
            self._size += len(some)
            data = data[len(some) :]

    def _filled(self) -> list[memoryview]:
        views = [memoryview(block) for block in self._blocks]
        last = self._size - BLOCK * (len(views) - 1)
        return [*views[:-1], views[-1][:last]]
