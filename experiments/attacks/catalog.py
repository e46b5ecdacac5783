"""All attacks by name. A new one is a function in a file of its own and a line here."""

from __future__ import annotations

from attacks import (
    greedy_clients,
    half_closed,
    host_names,
    idle_flood,
    image_attacks,
    never_reading,
    pipelining,
    slow_senders,
)
from attacks.place import Attack

ATTACKS: dict[str, Attack] = {
    "never reading": Attack(never_reading.run, "515 connections, 1,000 `GET /page.js` on each, nothing read"),
    "pipelining, unread": Attack(
        pipelining.unread, "150 connections, 252 kB of requests on each, nothing read"
    ),
    "pipelining, read": Attack(
        pipelining.read, "150 connections, all addresses, as fast as they are answered"
    ),
    "slow heads": Attack(slow_senders.heads, "600 connections, a header a second"),
    "slow bodies": Attack(slow_senders.bodies, "600 connections, 500 kB and then a byte a second"),
    "smallest chunks": Attack(slow_senders.chunks, "64 connections, chunks of one byte"),
    "half closed": Attack(half_closed.run, "nine vanish, the tenth waits for its answer", half_closed.holds),
    "greedy, forms": Attack(greedy_clients.forms, "60 requests of 64 images at any time"),
    "greedy, forms of large images": Attack(
        greedy_clients.forms_of_large_images, "8 requests of 64 JPEGs of 1 or 6 megapixels at any time"
    ),
    "greedy, most scans": Attack(
        greedy_clients.most_scans, "64 clients, each with a JPEG of the most scans that are decoded"
    ),
    "greedy, single images": Attack(greedy_clients.single_images, "500 requests of an image at any time"),
    "greedy, large bodies": Attack(greedy_clients.large_bodies, "12 requests of 60 MB at any time"),
    "host names": Attack(host_names.run, "12 names that are not the server's", host_names.holds),
    "idle flood": Attack(idle_flood.run, "1,500 connections that say nothing, opened anew"),
    **image_attacks.ATTACKS,
}
