"""Output for people: progress and warnings on stderr, results on stdout.

With `--json` stdout is for the JSON alone, and results for people go to stderr. All text passes `foreign_text`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from metavib.core.foreign_text import visible, visible_lines
from metavib.core.standard_output import Output

PLAIN_SECONDS = 5.0  # between two lines of progress where there is no terminal
NOTEBOOK_SECONDS = 0.5  # between two states of the one line in a notebook
REMEMBERED_SECONDS = 60.0  # after which a pace counts half, or half of the time so far if that is more


class _Terminal:
    """A terminal has room for one thing that moves; what comes second while there is one stays unseen."""

    taken = False
    silent = False  # of several processes of one run, one speaks
    json_alone = False  # stdout is for JSON, and text for people goes to stderr


def be_silent() -> None:
    """Show nothing more: another process does."""
    _Terminal.silent = True


def take_terminal() -> bool:
    """Whether there is a terminal and nothing moves in it yet; then it is the caller's until it is given back."""
    if _Terminal.taken or _Terminal.silent or not sys.stderr.isatty():
        return False
    _Terminal.taken = True
    return True


def give_terminal_back() -> None:
    """Something else may move now."""
    _Terminal.taken = False


class Pace:
    """How long work takes: the mean of what was seen, in which the past fades.

    It fades slowly, so that one step that took long moves an estimate little; and it does fade, because a machine
    gets other work to do.
    """

    def __init__(self) -> None:
        self.seconds = self.work = self.elapsed = 0.0

    def note(self, seconds: float, work: float) -> None:
        """So much work was done in so many seconds."""
        self.elapsed += seconds
        kept = 0.5 ** (seconds / max(REMEMBERED_SECONDS, self.elapsed / 2))
        self.seconds, self.work = kept * self.seconds + seconds, kept * self.work + work

    def seconds_for(self, work: float) -> float | None:
        """How long so much work will take; None where nothing was seen yet."""
        return self.seconds / self.work * work if self.work > 0 else None


class Bar:
    """Progress of one long piece of work: a bar in a terminal, one line that changes in a notebook, and now and
    then a line elsewhere.

    It appears with the first update and is let go of with the last, so that one bar can follow another.
    """

    def __init__(
        self, title: str, total: int | None, *, last_line: bool = True, hidden: bool = False
    ) -> None:
        self.title, self.total = title, total  # None where nobody knows how much there is
        self.hidden = hidden  # only what it has to say is seen
        self.shows_last_line = last_line  # where there is no terminal; work of a moment need not be told of
        self.worked: float | None = None  # at the last update; a resumed run did not do what is behind it now
        self.pace = Pace()
        self.seen = self.told = time.monotonic()
        self.rich: Any = None
        self.written = 0  # characters of the line in a notebook, which the next ones must cover

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self._let_go()

    def update(
        self, done: int, detail: str = "", title: str | None = None, worked: float | None = None
    ) -> None:
        """Show how much is done, and what else there is to say.

        `worked` says in the same unit how much of all work that is, where other things take time too: of a run's
        steps, also its validations and what follows the last step.
        """
        self.title = visible(title or self.title)
        detail = visible(detail)
        now = time.monotonic()
        if self.hidden:
            return
        worked = done if worked is None else worked
        if self.worked is None:
            self.told = now
            self._appear()
        else:
            self.pace.note(now - self.seen, worked - self.worked)
        self.seen, self.worked = now, worked
        if self.rich is None and _Terminal.taken:
            return
        over = self.total is not None and done >= self.total
        left = self._left()
        if self.rich is not None:
            self.rich.update(self.task, completed=done, description=self.title, detail=detail, left=left)
            if over:
                self._let_go()
            return
        much = f"{done}" if self.total is None else f"{done}/{self.total}"
        line = "  ".join(filter(None, [f"{self.title} {much}", detail, left]))
        if in_notebook():
            if now - self.told >= NOTEBOOK_SECONDS or (over and (self.shows_last_line or self.written)):
                self.told = now
                self._overwrite(line)
            if over:
                self._let_go()
        elif now - self.told >= PLAIN_SECONDS or (over and self.shows_last_line):
            self.told = now
            say(line)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.rich is not None:
            self.rich.console.print(visible_lines(text), highlight=False, markup=False)
        else:
            self._end_line()
            say(text)

    def _overwrite(self, line: str) -> None:
        """Put the line in place of the one before it."""
        if not _Terminal.silent:
            print("\r" + line.ljust(self.written), end="", file=sys.stderr, flush=True)
            self.written = len(line)

    def _end_line(self) -> None:
        """End the line of a bar, so that the next text begins a line of its own."""
        if self.written:
            print(file=sys.stderr)
            self.written = 0

    def _left(self) -> str:
        assert self.worked is not None
        remaining = 0.0 if self.total is None else self.total - self.worked
        seconds = self.pace.seconds_for(remaining)
        return f"{duration(seconds)} left" if seconds is not None and remaining > 0 else ""

    def _appear(self) -> None:
        if take_terminal():
            try:
                self.rich = _rich_bar()
                self.task = self.rich.add_task(self.title, total=self.total, detail="", left="")
                self.rich.start()
            except ModuleNotFoundError:  # then lines will do
                give_terminal_back()

    def _let_go(self) -> None:
        self._end_line()
        if self.rich is not None:
            self.rich.stop()
            self.rich = None
            give_terminal_back()


def in_notebook() -> bool:
    """Whether a notebook shows what is printed: IPython is there, with a kernel behind it."""
    ipython = sys.modules.get("IPython")
    # Another thread may be importing it this very moment.
    shell = getattr(ipython, "get_ipython", None)
    return shell is not None and hasattr(shell(), "kernel")


def say(text: str) -> None:
    """A line for people about what is going on. Where stderr takes nothing more, the work goes on without it."""
    if not _Terminal.silent:
        with contextlib.suppress(OSError):
            print(visible_lines(text), file=sys.stderr)


def print_result(text: str) -> None:
    """A line for people with something that the command found: on stdout, unless `--json` has it for itself."""
    if _Terminal.json_alone:
        say(text)
    elif not _Terminal.silent:
        _put(visible_lines(text))


def print_json(record: Any) -> None:
    """A record on stdout, in a line."""
    import json  # here, so that a help text need not wait for it

    _put(json.dumps(record))


@contextlib.contextmanager
def json_alone(given: bool) -> Iterator[None]:
    """Within it, where `--json` is given, nothing but JSON goes to stdout."""
    former, _Terminal.json_alone = _Terminal.json_alone, given
    try:
        yield
    finally:
        _Terminal.json_alone = former


@contextlib.contextmanager
def counting_bar(title: str) -> Iterator[Any]:
    """Progress told as (done, of how many): a bar for each count, as of the images of a domain."""
    bar: Bar | None = None

    def reading(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = Bar(title, total, last_line=False)
        bar.update(done)
        if done >= total:
            bar = None

    try:
        yield reading
    finally:
        if bar is not None:
            bar.__exit__()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """A plain table: the first column to the left, the others to the right unless all go to the left."""
    header, rows = [visible(cell) for cell in header], [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if left or column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and deviation in one cell of a table."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    import statistics

    return f"{statistics.mean(values):.2f} +- {statistics.stdev(values):.2f}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _put(text: str) -> None:
    """A line on stdout, at once: beside stderr it stands where it belongs, and a full disk is noticed here."""
    out = Output()
    out.write(text + "\n")
    out.flush()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),  # it may name a folder, which has brackets of its own
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}", style="cyan", markup=False),
        TextColumn("{task.fields[left]}", style="dim"),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
