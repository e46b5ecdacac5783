"""What people see: progress with time left, and tables. All of it goes to stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

PLAIN_SECONDS = 5.0  # between two lines of progress where there is no terminal


class Bar:
    """Progress of one long piece of work: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.started = time.monotonic()
        self.first: int | None = None  # where this call began: a resumed run did not do the rest now
        self.last_line = 0.0
        self.rich: Any = None

    def __enter__(self) -> Bar:
        if not self.quiet and sys.stderr.isatty():
            with contextlib.suppress(ModuleNotFoundError):
                self.rich = _rich_bar()
                self.rich.start()
                self.task = self.rich.add_task(self.title, total=self.total, detail="", left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.rich is not None:
            self.rich.stop()

    def update(self, done: int, detail: str = "", title: str | None = None) -> None:
        """Show how much is done, and what else there is to say."""
        self.title = title or self.title
        now = time.monotonic()
        if self.first is None:
            self.first, self.started = done, now
        left = _time_left(now - self.started, done - self.first, self.total - done)
        if self.rich is not None:
            self.rich.update(self.task, completed=done, description=self.title, detail=detail, left=left)
        elif not self.quiet and (now - self.last_line >= PLAIN_SECONDS or done == self.total):
            self.last_line = now
            print(
                "  ".join(filter(None, [f"{self.title} {done}/{self.total}", detail, left])), file=sys.stderr
            )

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.rich is not None:
            self.rich.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr)


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def reading_bar(title: str, *, quiet: bool) -> Iterator[Any]:
    """Progress over images that are being read; nothing is shown where they are read already."""
    bar: Bar | None = None
    stack = contextlib.ExitStack()

    def reading(done: int, total: int) -> None:
        nonlocal bar
        if bar is None or bar.total != total:
            stack.close()
            bar = stack.enter_context(Bar(title, total, quiet=quiet))
        bar.update(done)

    with stack:
        yield reading


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """A plain table: the first column to the left, the others to the right unless all go to the left."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if left or column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _time_left(elapsed: float, done: int, remaining: int) -> str:
    if done <= 0 or remaining <= 0:
        return ""
    return f"{duration(elapsed / done * remaining)} left"


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}", style="cyan"),
        TextColumn("{task.fields[left]}", style="dim"),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
