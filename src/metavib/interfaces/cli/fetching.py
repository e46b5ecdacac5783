"""Fetching a dataset from the command line: what is said, and the offer to do so where one is missing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from metavib.core.errors import UserError
from metavib.core.terminal import Bar, print_json, print_result, say, table
from metavib.data.fetching.download import in_gigabytes
from metavib.data.fetching.fetch import Fetched, Progress, fetch, publication_of
from metavib.data.fetching.hugging_face import fetch_from_hub
from metavib.data.fetching.parquet_images import Columns
from metavib.data.fetching.publications import PUBLICATIONS
from metavib.data.sources.catalog import default_data_root
from metavib.data.sources.hugging_face import PREFIX
from metavib.data.sources.published import MissingDataError
from metavib.interfaces.cli.flags import data_root


def fetch_by_name(arguments: argparse.Namespace) -> int:
    """Bring the dataset, and say what is there."""
    root = data_root(arguments) or default_data_root()
    name, from_hub = arguments.name, arguments.name.startswith(PREFIX)
    columns = Columns(arguments.image_column, arguments.label_column, arguments.domain_column)
    if not from_hub and (any(columns) or arguments.subset):
        raise UserError(f"{name} has no columns or subsets to choose: these flags are for hf:OWNER/NAME.")
    dataset, was_there = fetched(name, root, columns, arguments.subset)
    listings = [dataset.listing(domain) for domain in dataset.domains]
    images = sum(len(listing.names) for listing in listings)
    verb = "is there already" if was_there else "is there"
    title = name if from_hub else publication_of(name).title
    print_result(f"{title} {verb}: {images:,} images in {len(listings)} domains, in {root}")
    print_result(f"Try: metavib data {name}")
    if arguments.json:
        counts = {listing.domain: len(listing.names) for listing in listings}
        record = {"name": name, "data": str(root), "was_there": was_there, "images": counts}
        print_json(record | ({} if from_hub else {"licence": PUBLICATIONS[name].licence}))
    return 0


def fetched(name: str, root: Path, columns: Columns = Columns(), subset: str | None = None) -> Fetched:  # noqa: B008
    """Fetch with bars, after its licence was named."""
    if name.startswith(PREFIX):
        with _Bars() as bars:
            return fetch_from_hub(name, root, columns, subset, Progress(say, bars.downloaded, bars.unpacked))
    publication = publication_of(name)
    size = "" if publication.size is None else f", {in_gigabytes(publication.size)} to download"
    say(f"{publication.title} ({publication.paper}){size}.")
    say(f"licence: {publication.licence}. See {publication.page}")
    with _Bars() as bars:
        return fetch(name, root, Progress(say, bars.downloaded, bars.unpacked))


class _Bars:
    """One bar after another: of each archive that comes, and of each that is unpacked."""

    def __init__(self) -> None:
        self.bar: Bar | None = None
        self.title = ""

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def downloaded(self, name: str, done: int, total: int | None) -> None:
        megabytes = None if total is None else -(-total // 1_000_000)
        self._show(f"downloading {name}, MB", -(-done // 1_000_000), megabytes)

    def unpacked(self, name: str, files: int) -> None:
        if files % 100 == 0:
            self._show(f"unpacking {name}", files, None)

    def _show(self, title: str, done: int, total: int | None) -> None:
        if title != self.title:
            self._end()
            self.title, self.bar = title, Bar(title, total, last_line=False)
        assert self.bar is not None
        self.bar.update(done)

    def _end(self) -> None:
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
            self.bar = None


def offer(error: MissingDataError, root: Path | None) -> bool:
    """Ask whether to fetch a dataset that is missing, on a terminal; whether it is there now."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    size = ""
    if error.name.startswith(PREFIX):
        say(f"{error.name.removeprefix(PREFIX)} of the Hugging Face hub is not there.")
    elif error.name in PUBLICATIONS:
        publication = PUBLICATIONS[error.name]
        size = "" if publication.size is None else f" ({in_gigabytes(publication.size)})"
        say(f"{publication.title} is not there. Licence: {publication.licence}.")
    else:
        return False
    print(f"Fetch it now{size}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    fetched(error.name, root or default_data_root())
    return True


def list_published(arguments: argparse.Namespace) -> int:
    """All that can be fetched, with licences."""
    rows = []
    for name, one in PUBLICATIONS.items():
        size = "not published" if one.size is None else in_gigabytes(one.size)
        rows.append([name, str(one.domains), str(one.classes), f"{one.images:,}", size, one.licence_in_short])
    print_result(table(["name", "domains", "classes", "images", "download", "licence"], rows, left=True))
    print_result(
        "metavib fetch NAME says more about the licence, then downloads. Of the Hugging Face hub: hf:OWNER/NAME"
    )
    if arguments.json:
        print_json({name: {"licence": one.licence, "page": one.page} for name, one in PUBLICATIONS.items()})
    return 0
