"""Bytes of a body as they come, held so that all of them go back to the system once they are not needed."""

from __future__ import annotations

import mmap

BLOCK = 262_144  # bytes
FEW = 16  # th part of a block: so many bytes take no block yet


class Held:
    """A few bytes lie where all small things lie; many lie in blocks of pages of their own.

    Large pieces of the heap that grow and go in any order leave holes: with twelve bodies of 60 megabytes at a
    time the process took five times what they held, and with 600 first pieces of a body a quarter more.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._blocks: list[mmap.mmap] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        """Add the bytes that came next."""
        if not self._blocks and self._size + len(data) <= BLOCK // FEW:
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
        """All that came, in one. Several pieces or blocks are joined for whoever asks, and the whole goes with it.

        Kept, it would lie in the heap while the image waits, and the heap keeps what it once had.
        """
        blocks, pieces = self._blocks, self._pieces  # another thread may close this meanwhile
        if not blocks and len(pieces) <= 1:
            return pieces[0] if pieces else b""
        return b"".join(_filled(blocks, self._size) if blocks else pieces)

    def handed_over(self) -> bytes | mmap.mmap:
        """All that came, in one, and nothing is held then. Blocks go as they are copied: there are never two."""
        if not self._blocks:
            joined = self.content()
            if self._pieces:
                self._pieces, self._size = [], 0
            return joined
        whole, blocks, size = mmap.mmap(-1, self._size), self._blocks, self._size
        self._blocks, self._size = [], 0
        for block in blocks:
            with memoryview(block) as view, view[: size - whole.tell()] as filled:
                whole.write(filled)
            block.close()
        return whole

    def close(self) -> None:
        """Let go of everything now, whoever still has this: nothing is held then but the number of bytes.

        Whoever is reading the blocks at this moment keeps them until it has read them.
        """
        self._pieces, self._blocks = [], []

    def _write(self, data: memoryview) -> None:
        while data:
            place = self._size % BLOCK
            if not place:
                self._blocks.append(mmap.mmap(-1, BLOCK))
            some = data[: BLOCK - place]
            self._blocks[-1][place : place + len(some)] = some
            self._size += len(some)
            data = data[len(some) :]


def _filled(blocks: list[mmap.mmap], size: int) -> list[memoryview]:
    """Of these blocks the parts that hold so many bytes."""
    views = [memoryview(block) for block in blocks]
    last = size - BLOCK * (len(views) - 1)
    return [*views[:-1], views[-1][:last]]
