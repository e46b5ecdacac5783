"""`metavib examples`: let a model keep a few of its training images, or take them out again."""

from __future__ import annotations

import argparse
from pathlib import Path

from metavib.interfaces.cli.flags import add_shared

HELP = "let a model keep a few training images, for the page of metavib serve; none are kept otherwise"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("run", metavar="RUN", help="a finished run directory; its source images are opened")
    parser.add_argument(
        "--keep", type=int, default=20, metavar="N", help="images of each class (%(default)s)"
    )
    parser.add_argument("--remove", action="store_true", help="keep none any more")
    add_shared(parser, "--skip-bad", help="keep none of the files that cannot be read")
    add_shared(parser, "--data", "--memory", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Keep some, or none, and say how many there are."""
    from metavib.core.device import resolve_device
    from metavib.core.terminal import counting_bar, print_json, print_result
    from metavib.interfaces.cli.flags import data_root
    from metavib.runs.examples import keep_examples, remove_examples
    from metavib.training.run_directory import RunDirectory

    directory = RunDirectory(Path(arguments.run))
    if arguments.remove:
        remove_examples(directory)
        images = 0
        print_result(f"the model in {arguments.run} keeps no training images.")
    else:
        with counting_bar("reading images") as reading:
            description = keep_examples(
                directory,
                resolve_device(arguments.device),
                arguments.keep,
                data_root=data_root(arguments),
                skip_bad=arguments.skip_bad,
                reading=reading,
            )
        assert description.examples is not None
        images = description.examples.images
        print_result(
            f"the model in {arguments.run} keeps {images:,} training images now. Whoever gets the model "
            "directory gets them too; metavib serve shows them to whoever may ask."
        )
    if arguments.json:
        print_json({"run": arguments.run, "images": images})
    return 0
