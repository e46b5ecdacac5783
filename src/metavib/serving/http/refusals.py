"""Refusals: a status, what is wrong with a request, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

RETRY_SECONDS = 1


@dataclass(frozen=True)
class Problem:
    """The body of every answer that is not a success."""

    error: str  # what is wrong
    what_to_do: str


@dataclass(eq=False)
class Refusal(Exception):
    """A request, or one image of it, that gets no prediction."""

    status: int
    error: str
    what_to_do: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        """The JSON body of the answer."""
        return Problem(self.error, self.what_to_do)

    def to_raise(self) -> "Refusal":
        """A copy to raise: the traceback of a refusal that is kept would keep all that refers to it."""
        return Refusal(self.status, self.error, self.what_to_do, self.headers)


def busy(error: str) -> Refusal:
    """Too much at once: the same request may work a moment later."""
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        error,
        f"Try again in {RETRY_SECONDS} s, and send fewer requests at a time.",
        {"retry-after": str(RETRY_SECONDS)},
    )


def too_large(error: str, what_to_do: str) -> Refusal:
    """Over a limit in bytes, pixels or number."""
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, what_to_do)


def our_fault() -> Refusal:
    """Refuse for a fault of the server."""
    return Refusal(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the server failed on this request",
        "This is a fault of metavib, not yours: please report it with what the server printed.",
    )
