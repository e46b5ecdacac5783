"""`metavib describe`: what there is, and what it means."""

import argparse
import gc

from metavib.core.terminal import print_json
from metavib.interfaces.cli.flags import add_shared

HELP = "explain an algorithm, dataset, backbone, preset, setting, run or model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="what to explain; everything there is, without it"
    )
    parser.add_argument(
        "--dataset",
        help="show what the preset gives for this one: a known name, or a path (either kind of data)",
    )
    parser.add_argument("--preset", default="fast", help="whose values of settings are shown (%(default)s)")
    parser.add_argument("--algorithm", default="metavib", help="for which algorithm (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Explain one thing, or list everything."""
    gc.disable()  # nothing that is imported is garbage, and looking for some takes a quarter of the time
    try:
        from metavib.interfaces.cli.descriptions import PresetChoice, explanation, overview, show
    finally:
        gc.enable()

    choice = PresetChoice(arguments.preset, arguments.algorithm, arguments.dataset)
    choice.check()
    description = overview() if arguments.name is None else explanation(arguments.name, choice)
    show(description)
    if arguments.json:
        print_json(description)
    return 0
