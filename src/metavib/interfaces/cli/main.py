"""The command line: how a command is called and how it ends. Nothing heavy is imported before one runs."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from metavib import __version__
from metavib.core.cores import check, used_by_torch, usual
from metavib.core.errors import UserError, unknown_name
from metavib.core.foreign_text import visible
from metavib.core.memory import keep_freed_memory, limited_to
from metavib.core.processes.environment import first_of_torchrun, started_by_torchrun
from metavib.core.standard_output import Output, discard_output, open_standard_streams
from metavib.core.terminal import json_alone
from metavib.interfaces.cli.commands import COMMANDS, command_named
from metavib.interfaces.cli.parsing import Parser, parsers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 2 for what the user can fix, 1 for our own faults."""
    try:
        open_standard_streams()
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            Output().flush()  # here, where a closed pipe is expected
    except UserError as error:
        _say_in_one_line(str(error))
        return 2
    except KeyboardInterrupt:
        _complain("stopped.")
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        discard_output()
        return 0
    except Exception as error:
        if remedy := _remedy(error):
            _say_in_one_line(remedy)
            return 2
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
        _complain(f"this is a fault of metavib {__version__}, not yours. Please report it.")
        return 1


def _say_in_one_line(text: str) -> None:
    if first_of_torchrun():  # all of its processes were told the same
        _complain(" ".join(text.split()))


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # a stderr that takes nothing leaves the exit status
        print("metavib: " + visible(text), file=sys.stderr)


def _remedy(error: Exception) -> str | None:
    """The remedy for an error of the machine or of a path; None for our own faults."""
    from metavib.core.memory import is_shortage

    if is_shortage(error):
        return "out of memory: lower images_per_domain or a width with --set, or use another --device."
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}. Check the path and its permissions."
    return None


def _with_configuration(
    parsed: argparse.Namespace, arguments: list[str], parser: Parser, command: Parser
) -> argparse.Namespace:
    """The arguments with the flags of the configuration file before them: what is typed comes last, and wins."""
    from metavib.core.config_file import read_config, words_from  # not before they are needed
    from metavib.training.experiment import Experiment

    flags = {
        action.dest: action
        for action in command._actions
        if action.option_strings and action.dest not in ("help", "config")
    }
    import dataclasses

    fields = {field.name for field in dataclasses.fields(Experiment)}
    path = Path(parsed.config)
    values = read_config(path)
    if parsed.seed is not None:
        values.pop("seeds", None)  # one seed is typed in place of the file's
    words = words_from(path, values, flags, fields)
    try:
        return parser.parse_args([arguments[0], *words, *arguments[1:]])
    except UserError as error:
        raise UserError(f"the configuration {path}, as flags: {error}") from error


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in COMMANDS:
        raise unknown_name("command", first, COMMANDS)
    parser, commands = parsers([first] if first in COMMANDS else COMMANDS, with_flags=arguments)
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
    if getattr(parsed, "config", None):
        parsed = _with_configuration(parsed, arguments, parser, commands[parsed.command])
    if started_by_torchrun():
        if parsed.command != "train":
            raise UserError(f"torchrun is for metavib train: call metavib {parsed.command} by itself.")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost connection is ours to tell of
    computes = hasattr(parsed, "threads")
    if computes:
        check(parsed.threads)
    keep_freed_memory()
    with (
        json_alone(getattr(parsed, "json", False)),
        limited_to(getattr(parsed, "memory", None)),
        used_by_torch(parsed.threads or usual()) if computes else contextlib.nullcontext(),
    ):
        return command_named(parsed.command).run(parsed)
