"""One file from one of several mirrors, over HTTP, resumed where it was cut off.

What has come so far lies in `NAME.part`; `NAME.part.json` says of what. It is continued only if the server says
that the file is still the same one. A mirror that is gone, or that gives half a file or another one, is left for
the next.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.data.fetching.publications import Archive

SECONDS = 30.0  # that a mirror may be silent
ATTEMPTS = 3  # at one mirror, each from where the last one was cut off
CHUNK = 1 << 20
MOST_BYTES = 40 << 30  # of one file
SPARE = 256 << 20  # bytes of a disk that are left to others
AGENT = "metavib"

Told = Callable[[int, int | None], None]  # bytes so far, of how many


@final
class MirrorError(Exception):
    """Why a mirror has not given the file. `lasting` where asking it again will not help."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


@dataclass(frozen=True)
class _Kept:
    """Of which file a part is."""

    address: str
    total: int | None
    mark: str | None  # by which the server knows this version of the file


def download(
    archive: Archive, folder: Path, told: Told = lambda done, total: None, say: Callable[[str], None] = print
) -> Path:
    """The file, in the folder, from the first mirror that gives it whole. `UserError` where none does."""
    path = folder / archive.name
    if path.exists():
        return path  # it was whole when it got this name
    atomic.make_folder(folder)
    complaints = []
    for address in archive.mirrors:
        for _ in range(ATTEMPTS):
            try:
                _receive(address, archive, path, told)
                return path
            except MirrorError as error:
                complaint, lasting = f"{urllib.parse.urlsplit(address).netloc}: {error}", error.lasting
            if lasting:
                break
        complaints.append(complaint)
        if address != archive.mirrors[-1]:
            say(f"{complaint}; trying the next mirror.")
    kept = " What has come so far is kept: the same command goes on." if _part(path).exists() else ""
    raise UserError(f"{archive.name} could not be downloaded ({'; '.join(complaints)}).{kept}")


def require_space(folder: Path, needed: int, what: str) -> None:
    """Refuse to begin where the disk has less room than that."""
    place = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(place).free
    if free < needed + SPARE:
        raise UserError(
            f"{what} takes {in_gigabytes(needed)} and {place} has {in_gigabytes(max(free - SPARE, 0))} free. "
            "Free some space, or choose another disk with --data."
        )


def in_gigabytes(size: int) -> str:
    """A number of bytes as people say it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def _receive(address: str, archive: Archive, path: Path, told: Told) -> None:
    """Bring what is missing of the file; it gets its name when it is whole."""
    part, record = _part(path), _record(path)
    kept = _read_record(record) if part.exists() else None
    behind = part.stat().st_size if kept is not None and kept.address == address else 0
    try:
        with _asked(address, behind, kept) as answer:
            begin, total = _range_of(answer, behind)
            if answer.headers.get_content_type() == "text/html":
                raise MirrorError("it answers with a page in place of the file", lasting=True)
            if begin and kept is not None and kept.total != total:
                begin = 0
                raise MirrorError("the file has changed meanwhile")
            if total is not None:
                require_space(path.parent, total - begin, archive.name)
                if total > MOST_BYTES:
                    raise MirrorError(f"the file has {in_gigabytes(total)}, which is too much", lasting=True)
            mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            atomic.write_json(record, asdict(_Kept(address, total, mark)))
            done = _copy(answer, part, begin, lambda done: told(done, total))
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, UserError):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            forget(path)
            raise UserError(
                f"the disk is full while {archive.name} is downloaded. Free some space, or choose another "
                "disk with --data."
            ) from error
        raise _in_words(error) from error
    except MirrorError as error:
        if error.lasting or "changed" in str(error):
            forget(path)
        raise
    if total is not None and done < total:
        raise MirrorError(f"it was cut off after {done:,} of {total:,} bytes")
    if archive.sha256 is not None and (found := _sha256(part)) != archive.sha256:
        forget(path)
        raise MirrorError(
            f"its sha256 is {found[:16]}..., not {archive.sha256[:16]}...: another file", lasting=True
        )
    part.rename(path)
    record.unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Delete what there is of a file that has not become whole."""
    _part(path).unlink(missing_ok=True)
    _record(path).unlink(missing_ok=True)


def _asked(address: str, behind: int, kept: _Kept | None) -> Any:
    """The answer of the server to the wish for the file, from this byte on if it is still the same."""
    headers = {"User-Agent": AGENT}
    if behind:
        headers["Range"] = f"bytes={behind}-"
        if kept is not None and kept.mark is not None:
            headers["If-Range"] = kept.mark
    if not address.startswith(("http://", "https://")):
        raise MirrorError("it is not a web address", lasting=True)
    request = urllib.request.Request(address, headers=headers)  # noqa: S310
    return urllib.request.urlopen(request, timeout=SECONDS)  # noqa: S310


def _range_of(answer: Any, behind: int) -> tuple[int, int | None]:
    """Where the answer begins in the file, and how large the file is; None where that is not said."""
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
        first, _, total = rest.partition("-")[0], None, rest.rpartition("/")[2]
        if unit != "bytes" or not first.isdecimal() or int(first) != behind:
            raise MirrorError("it gives another part of the file than it was asked for")
        return behind, int(total) if total.isdecimal() else None
    return 0, int(length) if length is not None and length.isdecimal() else None


def _copy(answer: Any, part: Path, begin: int, told: Callable[[int], None]) -> int:
    """Write what comes behind what is there; how many bytes there are in all."""
    done = begin
    with open(part, "ab" if begin else "wb", opener=untrusted.opener) as file:
        while piece := answer.read(CHUNK):
            file.write(piece)
            done += len(piece)
            told(done)
            if done > MOST_BYTES:
                raise MirrorError("the file has no end", lasting=True)
    return done


def _in_words(error: Exception) -> MirrorError:
    if isinstance(error, urllib.error.HTTPError):
        gone = error.code not in (408, 416, 425, 429, 500, 502, 503, 504)
        return MirrorError(f"it answers {error.code} {error.reason}", lasting=gone)
    reason = getattr(error, "reason", error)
    return MirrorError(f"it cannot be reached ({reason})")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


def _read_record(path: Path) -> _Kept | None:
    try:
        found = untrusted.json_in(path, untrusted.RECORD_BYTES)
        return _Kept(str(found["address"]), found["total"], found["mark"])
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError):
        return None


def _sha256(path: Path) -> str:
    with open(path, "rb", opener=untrusted.opener) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
