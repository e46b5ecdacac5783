"""Image files are decoded once, into a memory map that is keyed by their content.

`<cache>/images/<key>/` holds `pixels.bin` (uint8, count x 3 x size x size) and `index.json`. The key is a
hash of the names and the bytes of all files, and of the range that deep ones are scaled by; `<signature>.memo`
remembers the key by the files' sizes and times, so that a later start need not read them, and `<signature>.values`
which values they use. A directory gets its final name only when it is complete.
"""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.data.dataset import DomainImages, Reading, digest_of
from metavib.data.decoding import images
from metavib.data.decoding.pixel_range import OLDER, PixelRange
from metavib.data.decoding.shrinking import BILINEAR

try:
    import fcntl
except ModuleNotFoundError:  # Windows: two processes may build the same entry; the rename stays atomic
    fcntl = None  # type: ignore[assignment]

_AT_A_TIME = 10_000  # files
_FORMAT_VERSION = 1  # changes whenever the same bytes would give other pixels


def cache_root() -> Path:
    """Where decoded images are kept."""
    if given := os.environ.get("METAVIB_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metavib"


def finding_at(root: Path, names: Sequence[str]) -> Path:
    """The file that remembers which values these files use: another one when a file changes."""
    times = [_file_times(root / name) for name in names]
    return cache_root() / "images" / f"{_hash('values', names, times)}.values"


def decoded(
    root: Path,
    names: Sequence[str],
    size: int,
    *,
    pixel_range: PixelRange = OLDER,
    interpolation: str = BILINEAR,
    skip_bad: bool = False,
    progress: Reading | None = None,
) -> DomainImages:
    """The pixels of the files, from the cache; built first where it does not have them."""
    folder = cache_root() / "images"
    settings: tuple[object, ...] = (_FORMAT_VERSION, size, skip_bad)
    if pixel_range.deep:  # else the key is that of earlier versions
        settings += (pixel_range.depth, pixel_range.low, pixel_range.high)
    if interpolation != BILINEAR:
        settings += (interpolation,)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        times = [_file_times(root / name) for name in names]
        memo = folder / f"{_hash(settings, names, times)}.memo"
        found = _load(folder / _remembered(memo), size)
        if found is None:
            digests = _digests(root, names)
            key = _hash(settings, names, digests)
            _remove_abandoned(folder)
            with held_while(folder / f"{key}.lock"):
                found = _load(folder / key, size)
                if found is None:
                    with closing(images.decode_all(root, names, size, pixel_range, interpolation)) as rows:
                        _build(folder / key, rows, digests, skip_bad, progress)
                    found = _load(folder / key, size)
            assert found is not None
            _write_synced(memo, key)  # a torn one does no harm: it names no entry
        return found
    except OSError as error:  # of the cache only: a file that cannot be read is a BadImage
        raise unusable(folder, "image cache", error) from error


def unusable(folder: Path, what: str, error: OSError) -> UserError:
    """Why a cache cannot be read or written, and what to do."""
    if error.errno == errno.ENOMEM:
        return UserError(f"the {what} {folder} cannot be mapped: raise the limit of 'ulimit -v'.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        problem = "is on a disk that is full; make room"
    else:
        problem = f"cannot be used ({error.strerror}); change its permissions"
    return UserError(f"the {what} {folder} {problem}, or set METAVIB_CACHE to another folder")


def bad_files(bad: Sequence[str]) -> UserError:
    """The one error for all bad files of a domain."""
    more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
    return UserError(
        f"{len(bad)} image file(s) cannot be used: {'; '.join(bad[:5])}{more}. "
        "Fix or remove them, or leave them out with --skip-bad"
    )


def _load(entry: Path, size: int) -> DomainImages | None:
    """A complete entry, or None where there is none or it is damaged."""
    try:
        index = untrusted.json_in(entry / "index.json", untrusted.TABLE_BYTES, entry.parent)
        shape = (len(index["kept"]), 3, size, size)
        with open(str(entry / "pixels.bin"), "rb", opener=untrusted.opener) as file:
            if len(index["digests"]) != shape[0] or os.fstat(file.fileno()).st_size != math.prod(shape):
                return None
            pixels = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
        kept, digests, skipped = (tuple(index[name]) for name in ("kept", "digests", "skipped"))
        return DomainImages(pixels, kept, digests, skipped, index.get("clipped", 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise  # there is one, and a limit of the process on what it maps (ulimit -v) keeps it out
        return None


def _build(
    entry: Path,
    rows: Iterator[images.DecodedImage],
    expected: Sequence[str],
    skip_bad: bool,
    progress: Reading | None,
) -> None:
    """Writes the entry beside its place, and moves it there when it is complete and on the disk."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        kept, skipped, clipped = [], [], 0
        with (partial / "pixels.bin").open("wb") as pixels:
            for position, row in enumerate(rows):
                if row.pixels is None:
                    skipped.append(row.problem)
                elif row.digest != expected[position]:  # else the key would not be that of the content
                    raise UserError(f"{row.name} changed while it was read; start again")
                else:
                    kept.append(position)
                    clipped += row.clipped
                    pixels.write(row.pixels.tobytes())
                if progress:
                    progress(position + 1, len(expected))
            if skipped and not (skip_bad and kept):
                raise bad_files(skipped)
            pixels.flush()
            os.fsync(pixels.fileno())
        index = {
            "kept": kept,
            "digests": [expected[position] for position in kept],
            "skipped": skipped,
            "clipped": clipped,
        }
        _write_synced(partial / "index.json", json.dumps(index))
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        partial.rename(entry)
    except BaseException:  # Ctrl-C too leaves nothing half-written
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _digests(root: Path, names: Sequence[str]) -> list[str]:
    """A digest of each file's bytes; of the reason where they cannot be read."""

    def digest(name: str) -> str:
        try:
            return digest_of(images.image_bytes(root / name, name))
        except images.BadImage as bad:
            return str(bad)

    found: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(names), _AT_A_TIME):  # what is handed over and not begun takes memory too
            found.extend(pool.map(digest, names[start : start + _AT_A_TIME]))
    return found


def _file_times(path: Path) -> tuple[int, ...]:
    """Size, times and place of a file, which change when it does; found without reading it."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _hash(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _remembered(memo: Path) -> str:
    """The key that a memo holds; without a memo, or with a damaged one, a name that no entry has."""
    try:
        key = untrusted.read_text(memo, untrusted.RECORD_BYTES, memo.parent)
    except (OSError, ValueError):
        return "none"
    return key if key.isalnum() else "none"


def _write_synced(path: Path, text: str) -> None:
    with open(path, "w", opener=untrusted.opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def held_while(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds the lock file in the block, or says False where another process does and we do not wait."""
    with open(path, "a", opener=untrusted.opener) as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        yield held


def _remove_abandoned(folder: Path) -> None:
    """A builder that was killed leaves its partial directory, but not its lock."""
    if not fcntl:
        return
    for partial in folder.glob("*.partial"):
        with held_while(folder / f"{partial.name.partition('.')[0]}.lock", wait=False) as held:
            if held:
                shutil.rmtree(partial, ignore_errors=True)
