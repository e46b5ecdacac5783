"""`metavib calibrate`: how sure a model may be on a domain nobody has seen, by leaving its sources out in turn."""

from __future__ import annotations

import argparse
from pathlib import Path

from metavib.interfaces.cli.flags import add_shared, check_checkpoint_seconds

HELP = "calibrate a finished run across its source domains, so that unsure and foreign hold on new ones"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("run", metavar="RUN", help="a finished run directory; its source images are opened")
    parser.add_argument(
        "--folds",
        choices=("heads", "whole"),
        default="heads",
        help="who answers for a domain that is left out: heads that are made again, in seconds (the default), or "
        "whole models that are trained without it, which takes as many trainings as there are source domains",
    )
    add_shared(parser, "--skip-bad", help="calibrate without the files that cannot be read")
    add_shared(parser, "--checkpoint-seconds", "--data", "--memory", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, and print what was measured on the left-out domains."""
    from metavib.core.device import resolve_device
    from metavib.core.terminal import print_json, print_result, say
    from metavib.interfaces.cli.calibration import (
        calibrate_with_bars,
        calibration_in_json,
        calibration_in_words,
    )
    from metavib.training.loop import Stopped

    check_checkpoint_seconds(arguments)
    try:
        description = calibrate_with_bars(
            arguments, Path(arguments.run), resolve_device(arguments.device), arguments.folds
        )
    except Stopped as stopped:
        say(f"metavib: {stopped}; the folds are kept. The same command goes on.")
        return 130
    assert description.domain_calibration is not None
    print_result(calibration_in_words(description.domain_calibration))
    if arguments.json:
        print_json({"run": arguments.run} | calibration_in_json(description.domain_calibration))
    return 0
