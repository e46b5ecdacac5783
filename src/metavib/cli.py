"""The command line: how a command is called and how it ends. Nothing heavy is imported before one runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from metavib import __version__
from metavib.arguments import COMMANDS, parsers
from metavib.cores import check, used_by_torch, usual
from metavib.errors import UserError, unknown_name
from metavib.memory import keep_freed_memory, limited_to


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 2 for what the user can fix, 1 for our own faults."""
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # here, where a closed pipe is expected
    except UserError as error:
        _say_in_one_line(str(error))
        return 2
    except KeyboardInterrupt:
        print("metavib: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if remedy := _remedy(error):
            _say_in_one_line(remedy)
            return 2
        traceback.print_exc()
        print(
            f"metavib: this is a fault of metavib {__version__}, not yours. Please report it.",
            file=sys.stderr,
        )
        return 1


def _say_in_one_line(text: str) -> None:
    if _by_torchrun() and os.environ.get("RANK", "0") != "0":
        return  # all processes of torchrun were told the same, and the first one says what is wrong with it
    print("metavib: " + " ".join(text.split()), file=sys.stderr)


def _remedy(error: Exception) -> str | None:
    """What to do about an error of the machine or of a path; None for our own faults."""
    no_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
    if no_memory or type(error).__name__ == "OutOfMemoryError":
        return "out of memory: lower images_per_domain with --set, or use another --device."
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}. Check the path and its permissions."
    return None


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in COMMANDS:
        raise unknown_name("command", first, COMMANDS)
    parser, commands = parsers()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        own = commands.get(parsed.command, parser)
        options = [option for action in own._actions for option in action.option_strings]
        if unknown[0] in options:
            raise UserError(
                f"{unknown[0]} goes after the command: metavib {parsed.command} ... {unknown[0]}."
            )
        raise unknown_name("argument", unknown[0], options)
    if parsed.command is None:
        parser.print_help()
        return 0
    if _by_torchrun():
        if parsed.command != "train":
            raise UserError(f"torchrun is for metavib train: call metavib {parsed.command} by itself.")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost connection is ours to tell of
    computes = hasattr(parsed, "threads")
    if computes:
        check(parsed.threads)
    keep_freed_memory()
    handler: Callable[[argparse.Namespace], int] = importlib.import_module(
        f"metavib.commands.{parsed.command}"
    ).run
    with (
        limited_to(getattr(parsed, "memory", None)),
        used_by_torch(parsed.threads or usual()) if computes else contextlib.nullcontext(),
    ):
        return handler(parsed)
