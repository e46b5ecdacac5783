"""stdout as the place of results: a disk that is full, or a stdout that is closed, is an error in words.

A reader that has gone (`| head`) is not an error: `BrokenPipeError` passes, and ends the command quietly.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO, final

from metavib.core.errors import UserError


@final
class Output:
    """Standard output as it is at first: a bar that moves in a terminal takes `sys.stdout` over later."""

    def __init__(self) -> None:
        self.stream: TextIO = sys.stdout

    def write(self, text: str) -> None:
        """Write, now or when there is more."""
        with _errors_in_words():
            self.stream.write(text)

    def flush(self) -> None:
        """Hand on to the system all that was written."""
        with _errors_in_words():
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether people are looking at it."""
        return self.stream.isatty()


def open_standard_streams() -> None:
    """Have three standard streams, whatever the caller closed. A command without a stdout is refused.

    A file that is opened while a standard stream is closed gets its number, and what a library prints then goes
    into that file.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while os.open(os.devnull, os.O_RDWR) < 2:
            pass
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise UserError("stdout is closed, and results go there: leave it open, or send it to a file.")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # where the encoding has no such character


def discard_output() -> None:
    """Let nothing more be written to stdout: the interpreter would try again when it ends, and complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise UserError(
            f"cannot write to stdout: {error.strerror}. Make room there, or send it to another place."
        ) from error
