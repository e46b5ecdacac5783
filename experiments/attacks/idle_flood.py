"""Connections that say nothing, many more than there may be, opened anew where they are ended."""

from __future__ import annotations

import contextlib
import socket

from attacks.place import Place, Seen, ended

CONNECTIONS = 1500


def run(place: Place) -> Seen:
    """Hold as many as the server lets us."""
    opened = gone = 0
    links: list[socket.socket] = []
    while place.left:
        for link in [link for link in links if _silent_end(link)]:
            link.close()
            links.remove(link)
            gone += 1
        for _ in range(min(50, place.of(CONNECTIONS) - len(links))):
            with contextlib.suppress(OSError):
                links.append(place.connect(timeout=2.0))
                links[-1].setblocking(False)
                opened += 1
    for link in links:
        link.close()
    return {"connections": opened, "ended by the server": gone}


def _silent_end(link: socket.socket) -> bool:
    """Also where it was told why: it is told only at its end."""
    with contextlib.suppress(OSError):
        link.recv(1 << 16)
    return ended(link)
