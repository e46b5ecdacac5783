"""Clients that send thousands of requests at once: all of them parsed would be gigabytes."""

from __future__ import annotations

import time

from attacks.place import Place, Seen, get, send_some

CONNECTIONS, BYTES = 150, 252_000


def unread(place: Place) -> Seen:
    """Small requests in great number, of which no answer is read."""
    small = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with place.connections(place.of(CONNECTIONS)) as links:
        left = {link: small * (BYTES // len(small)) for link in links}
        while place.left:
            for link, data in list(left.items()):
                if data and (sent := send_some(link, data)) >= 0:
                    left[link] = data[sent:]
            time.sleep(0.1)
        return {"connections": len(links)}


def read(place: Place) -> Seen:
    """As many as the server takes, of addresses that cost it most, and all answers are read."""
    paths = ["/metrics", "/openapi.json", "/model", "/nothing", "/ready", "/page.js", "/health"]
    requests = b"".join(get(path) for path in paths) * 50
    answers = 0
    with place.connections(place.of(CONNECTIONS)) as links:
        left = dict.fromkeys(links, b"")
        while place.left:
            for link, data in list(left.items()):
                sent = send_some(link, data or requests)
                if sent < 0:
                    del left[link]
                    continue
                left[link] = (data or requests)[sent:]
                try:
                    answers += link.recv(1 << 16).count(b"HTTP/1.1 ")
                except OSError:
                    continue
        return {"connections": len(links), "answers": answers}
