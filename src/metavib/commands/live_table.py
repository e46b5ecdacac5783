"""A table that lives in a terminal while something long goes on; elsewhere, now and then a line."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from metavib.foreign_text import visible_lines
from metavib.terminal import PLAIN_SECONDS, give_terminal_back, say, take_terminal


class LiveTable(ABC):
    """Who has something to show says `show`; `say` puts a line above it."""

    def __init__(self) -> None:
        self.told = 0.0
        self.live: Any = None

    @abstractmethod
    def text(self) -> str:
        """The table as it stands."""

    def begin(self) -> None:
        """Take the terminal, where there is one."""
        if take_terminal():
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:  # then lines will do
                give_terminal_back()
            else:
                self.live = Live(console=Console(stderr=True), refresh_per_second=2)
                self.live.start()

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
            give_terminal_back()

    def say(self, text: str) -> None:
        """A line above the table."""
        if self.live is not None:
            self.live.console.print(visible_lines(text), highlight=False, markup=False)
        else:
            say(text)

    def show(self, line: str) -> None:
        """The table, or where there is no terminal the line, if the last one was long ago."""
        if self.live is not None:
            from rich.text import Text

            self.live.update(Text(self.text()))
        elif line and time.monotonic() - self.told >= PLAIN_SECONDS:
            self.told = time.monotonic()
            say(line)
