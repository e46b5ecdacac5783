"""The end of a connection, for the one request on it that is being answered."""

from __future__ import annotations

from collections.abc import Callable


class Departure:
    """Tells who asked for it that the client has gone."""

    def __init__(self) -> None:
        self._gone = False
        self._call: Callable[[], None] | None = None

    def when_gone(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this once the client has gone, or now, unless what is given back was called before."""
        if self._gone:
            call()
        else:
            self._call = call
        return self._forget

    def happens(self) -> None:
        """The client has gone."""
        self._gone = True
        if self._call is not None:
            self._call()

    def _forget(self) -> None:
        self._call = None
