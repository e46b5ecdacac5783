"""All attacks by name. A new one is a function in a file of its own and a line here."""

from __future__ import annotations

from attacks import image_attacks, never_reading
from attacks.place import Attack

ATTACKS: dict[str, Attack] = {
    "never reading": Attack(
        never_reading.run, "515 connections, 1,000 times GET /page.js on each, nothing is read"
    ),
    **image_attacks.ATTACKS,
}
