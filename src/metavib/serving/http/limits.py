"""How much a server takes on: bytes, pixels, number and time, for one client and for all of them together."""

from __future__ import annotations

from dataclasses import dataclass

from metavib.core.errors import UserError
from metavib.serving.http.refusals import busy

SMALL_BYTES = 131_072  # of a request: there is always room for one with this much on every connection
LARGE_PIXELS = 1_000_000  # larger images are decoded one at a time, so that small ones do not wait for them


@dataclass(frozen=True)
class Limits:
    """The most that one request, and all requests that are being worked on, may take."""

    image_bytes: int = 20_000_000
    image_pixels: int = 50_000_000
    images: int = 64  # in one request
    request_bytes: int = 64_000_000
    body_seconds: float = 30.0  # until the whole body has come
    answer_seconds: float = 60.0  # until the answer is ready
    waiting_images: int = 4096  # of all clients; and one more of every connection
    waiting_bytes: int = 240_000_000  # of all clients: bodies, as they come too, and the pixels made of them
    connections: int = 512
    header_bytes: int = 32_768
    headers: int = 100
    header_seconds: float = 10.0
    early_bytes: int = 16_000_000  # of all clients: requests that came before the last one was answered
    send_seconds: float = 10.0  # in which a client takes some of its answer, or is given up
    idle_seconds: int = 30  # of a connection between two requests
    stop_seconds: int = 30  # for requests that are being answered when the server stops

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"the limit {name} must be above 0, not {value}.")


class Budget:
    """The bytes that all requests together may hold. Some are kept for small requests."""

    def __init__(self, most: int, for_small: int = 0) -> None:
        self.most, self.taken = most, 0
        self.for_large = most - min(for_small, most // 2)

    def account(self) -> Account:
        """Open the account of one request; all of it is given back at the end of the block."""
        return Account(self)


class Account:
    """One request's part of the budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.taken = budget, 0

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *error: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Nothing is held any more."""
        self.budget.taken -= self.taken
        self.taken = 0

    def take(self, count: int) -> None:
        """So many bytes more; refused where all requests together would hold too many."""
        small = self.taken + count <= SMALL_BYTES
        if self.budget.taken + count > (self.budget.most if small else self.budget.for_large):
            raise busy("the server holds as many bytes of images as it may")
        self.budget.taken += count
        self.taken += count
