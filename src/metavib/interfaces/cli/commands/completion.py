"""`metavib completion`: a script that lets a shell complete commands, flags and names."""

from __future__ import annotations

import argparse

HELP = "print a script by which bash, zsh or fish completes commands, flags and names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    """Print the script that completes commands in a shell."""
    from metavib.interfaces.cli.completing import print_script

    return print_script(arguments.shell)
