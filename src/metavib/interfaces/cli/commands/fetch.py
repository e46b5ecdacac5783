"""`metavib fetch`: published datasets by name, and those of the Hugging Face hub, whole or absent."""

from __future__ import annotations

import argparse

from metavib.interfaces.cli.flags import add_shared

HELP = "download a published dataset by its name, check it, and unpack it; lists them where no name is given"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("name", metavar="NAME", nargs="?", help="pacs, vlcs, ..., or hf:OWNER/NAME")
    add_shared(parser, "--data", help="the folder that it comes into, if not METAVIB_DATA")
    hub = parser.add_argument_group("datasets of the Hugging Face hub, hf:OWNER/NAME")
    hub.add_argument(
        "--image-column", metavar="NAME", help="the column with the images, if there are several"
    )
    hub.add_argument("--label-column", metavar="NAME", help="the column with the classes, if not `label`")
    hub.add_argument(
        "--domain-column",
        metavar="NAME",
        help="the column with the domains, if not `domain`; `split` where each split is a domain",
    )
    hub.add_argument("--subset", metavar="NAME", help="the subset to take, if there are several")


def run(arguments: argparse.Namespace) -> int:
    """Fetch it, or say what there is to fetch."""
    from metavib.interfaces.cli.fetching import fetch_by_name, list_published

    return list_published(arguments) if arguments.name is None else fetch_by_name(arguments)
