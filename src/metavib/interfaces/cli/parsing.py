"""The parser of the command line, and from it the command that goes on with what was stopped.

It is written with argparse: `python -m metavib` must run where only torch is installed, and argparse is always
there and imports in a few milliseconds.
"""

import argparse
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from metavib.core.errors import UserError
from metavib.core.processes.environment import restart_words
from metavib.core.standard_output import Output
from metavib.interfaces.cli.commands import COMMANDS, command_named


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line, of stdout too."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See '{self.prog} --help'.")

    def _print_message(self, message: str, file: object = None) -> None:
        """Help and version. argparse itself passes over a stdout that takes nothing."""
        Output().write(message)


class _Version(argparse.Action):
    """Tells versions. What they are is found out when they are asked for: torch takes seconds to import."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        from metavib.interfaces.cli.versions import versions

        parser._print_message(versions())
        parser.exit()


def parsers(
    names: Iterable[str] = COMMANDS, with_flags: Collection[str] = COMMANDS
) -> tuple[Parser, dict[str, Parser]]:
    """The parser of a command line with these commands, and that of each command.

    Help must be fast, so that commands that nobody calls need no flags.
    """
    parser = Parser(
        prog="metavib",
        description="Image classifiers that work on sources they have never seen, and say when they are unsure.",
        epilog="Start with: metavib demo",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="of metavib, torch and CUDA, and the device"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands = {}
    for name in names:
        command = command_named(name)
        description = f"{command.HELP[0].upper()}{command.HELP[1:]}."
        commands[name] = subparsers.add_parser(
            name, help=command.HELP, description=description, allow_abbrev=False
        )
        if name in with_flags:
            command.add_arguments(commands[name])
    return parser, commands


SECRET = ("token",)  # flags that are never printed


def resume_command(arguments: argparse.Namespace, *, recorded: Collection[str] = (), **changed: Any) -> str:
    """The command that goes on with what these arguments began: every flag that is not at its default.

    `recorded` are flags whose values are found again where the work was kept; `changed` are values in place of
    those that were given. `command=` another one has those of its flags that were given to this one.
    """
    values = vars(arguments) | changed
    name = values["command"]
    _, commands = parsers([name])
    positional: list[str] = []
    optional: list[str] = []
    for action in commands[name]._actions:
        value = values.get(action.dest)
        if action.dest in (*recorded, *SECRET) or value in (None, action.default):
            continue
        (optional if action.option_strings else positional).extend(_words(action, value))
    import shlex

    return shlex.join([*restart_words(), "metavib", name, *positional, *optional])


def _words(action: argparse.Action, value: Any) -> list[str]:
    """The words that give a flag, or an argument without a flag, this value."""
    texts = [str(one) for one in (value if isinstance(value, list) else [value])]
    if not action.option_strings:
        return texts
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [flag]
    if isinstance(action, argparse._AppendAction):
        return [word for text in texts for word in _option(flag, text)]
    return _option(flag, texts[0]) if action.nargs != "+" else [flag, *texts]


def _option(flag: str, text: str) -> list[str]:
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]  # which would be taken for a flag
