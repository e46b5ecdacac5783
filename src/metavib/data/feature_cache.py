"""Features of images by a network that does not change: computed once, and kept beside the decoded images.

`<cache>/features/<key>.bin` holds the features of all images of a domain (float32, count x size) and a checksum.
The key is a hash of what decides them. They are computed piece by piece: a piece is a file in `<key>.pieces/`,
whole or absent, so that an interrupted computation goes on where it was. A damaged file is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from metavib.core import atomic, untrusted
from metavib.core.shapes import Float
from metavib.data.cache import cache_root, held_while, unusable

PIECE = 256  # images: what is lost at most when the computation is interrupted
_CHECKED_AT_ONCE = 16 << 20  # bytes
_CHECKSUM = 16  # bytes

Computing = Callable[[int, int], np.ndarray]  # the features of images [start, end): [some, size]


def features(
    key: str, count: int, size: int, compute: Computing, computed: Callable[[int], None] = lambda images: None
) -> Float[np.ndarray, "count size 1 1"]:
    """The features under this key, as images of one pixel, from the cache; computed first where it lacks them.

    `computed` is told of so many more images that are there.
    """
    folder = cache_root() / "features"
    path, pieces = folder / f"{key}.bin", folder / f"{key}.pieces"
    shape = (count, size)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_whole(path, shape):
            with held_while(folder / f"{key}.lock"):
                if not _is_whole(path, shape):
                    _compute_pieces(pieces, shape, compute, computed)
                    _join(pieces, path, shape)
                else:
                    computed(count)
        else:
            computed(count)
        shutil.rmtree(pieces, ignore_errors=True)
        with open(str(path), "rb", opener=untrusted.opener) as file:
            return np.memmap(file, dtype=np.float32, mode="r", shape=(*shape, 1, 1))
    except OSError as error:
        raise unusable(folder, "feature cache", error) from error


def _compute_pieces(
    pieces: Path, shape: tuple[int, int], compute: Computing, computed: Callable[[int], None]
) -> None:
    pieces.mkdir(exist_ok=True)
    atomic.remove_leftovers(pieces)
    count, size = shape
    for start in range(0, count, PIECE):
        end = min(start + PIECE, count)
        place = pieces / f"{start}.bin"
        if not _is_whole(place, (end - start, size)):
            content = np.ascontiguousarray(compute(start, end), dtype=np.float32).tobytes()
            checksum = hashlib.blake2b(content, digest_size=_CHECKSUM).digest()
            atomic.write_bytes(place, content + checksum)
        computed(end - start)


def _join(pieces: Path, path: Path, shape: tuple[int, int]) -> None:
    """All pieces as one file, which gets its name when it is complete and on the disk."""
    partial, whole = path.with_suffix(".partial"), hashlib.blake2b(digest_size=_CHECKSUM)
    with open(partial, "wb", opener=untrusted.opener) as file:
        for start in range(0, shape[0], PIECE):
            rows = min(PIECE, shape[0] - start)
            most = 4 * rows * shape[1] + _CHECKSUM
            content = untrusted.read(pieces / f"{start}.bin", most, pieces)[:-_CHECKSUM]
            whole.update(content)
            file.write(content)
        file.write(whole.digest())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _is_whole(path: Path, shape: tuple[int, int]) -> bool:
    """Whether the file is there, and what was written."""
    length = 4 * shape[0] * shape[1]
    try:
        with open(path, "rb", opener=untrusted.opener) as file:
            if os.fstat(file.fileno()).st_size != length + _CHECKSUM:
                return False
            whole = hashlib.blake2b(digest_size=_CHECKSUM)
            while length:
                content = file.read(min(length, _CHECKED_AT_ONCE))
                if not content:
                    return False
                whole.update(content)
                length -= len(content)
            return file.read() == whole.digest()
    except OSError:
        return False
