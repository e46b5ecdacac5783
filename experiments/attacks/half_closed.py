"""Clients that end their own side after asking, and others that go away without waiting."""

from __future__ import annotations

import contextlib

from attacks.place import Place, Seen, digit, post


def run(place: Place) -> Seen:
    """Of ten clients nine vanish; the tenth has only ended its side, and must get its answer."""
    request = post(digit())
    asked = answered = vanished = 0
    while place.left:
        for _ in range(9):
            with contextlib.suppress(OSError), place.connect() as link:
                link.sendall(request)
                vanished += 1
        with contextlib.suppress(OSError), place.connect() as link:
            link.sendall(request)
            link.shutdown(1)
            received = b""
            while chunk := link.recv(1 << 16):
                received += chunk
            asked += 1
            answered += received.startswith(b"HTTP/1.1 200")
    return {"half closed": asked, "answered": answered, "vanished": vanished}


def holds(seen: Seen) -> bool:
    """Whoever had only ended its side has its answer."""
    return seen.get("half closed", 0) > 0 and seen["half closed"] == seen["answered"]
