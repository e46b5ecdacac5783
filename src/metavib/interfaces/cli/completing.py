"""The script by which a shell completes, made from the parser by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from metavib.algorithms import ALGORITHMS
from metavib.core.errors import require_installed, unknown_name
from metavib.core.standard_output import Output
from metavib.data.fetching.publications import PUBLICATIONS
from metavib.interfaces.cli.parsing import parsers
from metavib.interfaces.tracking.trackers import TRACKERS
from metavib.nn.backbones import BACKBONES
from metavib.reports.figures import FIGURES
from metavib.runs.cross_validation import RULES
from metavib.training.averaging import AVERAGES
from metavib.training.recipes import PRESETS

SHELLS = ("bash", "zsh", "fish")
# What is offered for the value of a flag. The parser itself takes more, as A,B or a path, and has its own errors.
OFFERED: dict[str, Sequence[str]] = {
    "algorithm": tuple(ALGORITHMS),
    "average": tuple(AVERAGES),
    "backbone": tuple(BACKBONES),
    "device": ("auto", "cpu", "cuda", "mps"),
    "engine": ("local", "ray"),
    "figure": tuple(FIGURES),
    "log": tuple(TRACKERS),
    "preset": tuple(PRESETS),
    "select": tuple(RULES),
    "shell": SHELLS,
}
OFFERED_TO: dict[tuple[str, str], Sequence[str]] = {("fetch", "name"): tuple(PUBLICATIONS)}
FILES = (
    "config",
    "data",
    "dataset",
    "file",
    "images",
    "measured_by",
    "model",
    "out",
    "run",
    "runs",
    "weights",
)


def print_script(shell: str) -> int:
    """Put the script for this shell on stdout."""
    if shell not in SHELLS:
        raise unknown_name("shell", shell, SHELLS)
    require_installed("shtab", "metavib completion needs shtab", extra="completion")
    import shtab

    parser, commands = parsers()
    for name, command in commands.items():
        for action in command._actions:
            _offer(name, action, shtab.FILE)
    Output().write(shtab.complete(parser, shell=shell) + "\n")
    return 0


def _offer(command: str, action: argparse.Action, files: Any) -> None:
    """Say what a shell offers for this argument."""
    offered = OFFERED_TO.get((command, action.dest)) or OFFERED.get(action.dest)
    if offered is not None and action.nargs != 0:
        action.choices = list(offered)
    elif action.dest in FILES:
        action.complete = files  # type: ignore[attr-defined]
