"""The commands: one file each, and one line here.

A file has `HELP`, its line in `metavib --help`; `add_arguments(parser)`, its flags; and `run(arguments)`, which
gives the exit status. Help must be fast, so that a file imports nothing heavy before its `run` is called.
"""

import argparse
import importlib
from typing import Any, Protocol

COMMANDS = (  # in the order of `metavib --help`
    "demo",
    "data",
    "fetch",
    "train",
    "evaluate",
    "calibrate",
    "examples",
    "predict",
    "forecast",
    "serve",
    "reproduce",
    "sweep",
    "report",
    "export",
    "describe",
    "completion",
)


class Command(Protocol):
    """The interface of a file in this folder."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


def command_named(name: str) -> Command:
    """The command with this name."""
    module: Any = importlib.import_module(f"{__name__}.{name}")
    return module
