"""Uploads that are hard to decode, from a few clients that send one after the other and read every answer."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from attacks.image_bombs import ALLOWED_SCANS, BOMBS, scans
from attacks.place import Attack, Place, Seen

CLIENTS = 4
PATIENCE = 70.0  # seconds; a server answers within 60
ASPECTS = ("PNG: one row", "PNG: one column", "PNG: 50 megapixels", "PNG: 65,000 x 65,000")
ANSWERS = {"200", "413", "415", "422", "503"}

Upload = tuple[bytes, str]  # a body and its type


def run(place: Place, make: Callable[[float], Sequence[Upload]]) -> Seen:
    """The uploads again and again until the time is over; the statuses of the answers, and the longest wait."""
    uploads = make(place.share)
    place = place.from_now()
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def client(first: int) -> None:
        number = first
        while place.left:
            body, kind = uploads[number % len(uploads)]
            began = time.monotonic()
            status = _status(place.port, body, kind)
            with lock:
                seen[status] += 1
                seen["longest ms"] = max(seen["longest ms"], round(1000 * (time.monotonic() - began)))
            number += 1

    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(place.left + PATIENCE)
    return dict(seen)


def _status(port: int, body: bytes, kind: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        try:
            connection.request("POST", "/predict", body, {"Content-Type": kind})
            answer = connection.getresponse()
            answer.read()
            return str(answer.status)
        except (OSError, http.client.HTTPException):
            return "no answer"


def holds(seen: Seen) -> bool:
    """Every upload got an answer or a reason."""
    return set(seen) - {"longest ms"} <= ANSWERS and len(seen) > 1


def _bombs(*beginnings: str) -> Callable[[float], Sequence[Upload]]:
    """All bombs whose name begins so."""

    def made(share: float) -> Sequence[Upload]:
        return [(make(share), "image/png") for name, make in BOMBS.items() if name.startswith(beginnings)]

    return made


def _allowed_scans(share: float) -> Sequence[Upload]:
    """As many scans as are decoded, and of images of every size."""
    return [(scans(count, side, side), "image/jpeg") for side, count in ALLOWED_SCANS]


def _array_headers(share: float) -> Sequence[Upload]:
    """Headers that are Python literals, of every strange kind; and arrays of a single row."""
    values = ["0x" + "f" * 5000, "9" * 4000, "True", "-1", "1" + "0" * 300, "(" * 500, "1j", "2 ** 64", "''"]
    found = []
    for value in values:
        header = (
            f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({value}, {value}, {value}), }}\n".encode()
        )
        found.append(
            (b"\x93NUMPY\x02\0" + len(header).to_bytes(4, "little") + header + b"abc", "application/x-npy")
        )
    for shape in ((1, 19_000_000, 1), (1, 1, 19_000_000), (1, 60_000, 300)):
        file = io.BytesIO()
        np.save(file, np.zeros(shape, np.uint8))
        found.append((file.getvalue(), "application/x-npy"))
    return found


def _attack(make: Callable[[float], Sequence[Upload]], what: str) -> Attack:
    return Attack(functools.partial(run, make=make), what, holds)


ATTACKS: dict[str, Attack] = {
    "scan bombs": _attack(
        _bombs("JPEG"), "JPEGs of 200,000 scans, 5 million comments, 19 MB between markers"
    ),
    "as many scans as allowed": _attack(_allowed_scans, "JPEGs with the most scans that are decoded"),
    "chunk bombs": _attack(
        _bombs(*(name for name in BOMBS if name.startswith("PNG") and name not in ASPECTS)),
        "PNGs of 1.6 million chunks, of texts that are inflated, of metadata that points at 19 MB",
    ),
    "aspect bombs": _attack(_bombs(*ASPECTS), "PNGs of one row, one column, 50 megapixels, 65,000 x 65,000"),
    "directory bombs": _attack(
        _bombs("TIFF"), "TIFFs with 2 million strips, 240,000 pages, entries that point at 19 MB"
    ),
    "frame bombs": _attack(
        _bombs("WebP"), "WebPs of 300,000 frames, of 25 megapixels, with EXIF that points at 19 MB"
    ),
    "run bombs": _attack(_bombs("BMP"), "BMPs of 10 million empty runs"),
    "array headers": _attack(_array_headers, ".npy headers that are no shape, and arrays of one row"),
}
