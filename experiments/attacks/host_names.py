"""Names that point at this machine although they are another's, and requests that give two."""

from __future__ import annotations

import contextlib

from attacks.place import Place, Seen

HOSTS = (
    *(
        "evil.com",
        "[::1].evil.com",
        "[::1]evil.com",
        "localhost:evil.com",
        "localhost:80:evil.com",
        "127.0.0.1.nip.io",
    ),
    *(
        "localhost@evil.com",
        "evil.com\r\nHost: localhost",
        "localhost\r\nHost: evil.com",
        "[::1]:80]",
        "",
        " ",
    ),
)


def run(place: Place) -> Seen:
    """Every name again and again; none may be answered."""
    asked = passed = 0
    while place.left:
        for host in HOSTS:
            with contextlib.suppress(OSError), place.connect() as link:
                link.sendall(f"GET /model HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                passed += link.recv(100).startswith(b"HTTP/1.1 200")
                asked += 1
    return {"asked": asked, "answered": passed}


def holds(seen: Seen) -> bool:
    """None of them was answered."""
    return seen.get("asked", 0) > 0 and seen["answered"] == 0
