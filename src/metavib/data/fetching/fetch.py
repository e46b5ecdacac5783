"""A published dataset, whole in the data folder or not there at all.

Archives and what comes out of them lie in `DIR/.fetch/NAME` until the loader has opened them and counted. Then one
rename puts the dataset into its place. What was downloaded in part is kept for the next call; nothing else is.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

from metavib.core import atomic
from metavib.core.errors import UserError, unknown_name
from metavib.data.dataset import Dataset
from metavib.data.fetching.download import download, require_space
from metavib.data.fetching.publications import PUBLICATIONS, Archive, Publication
from metavib.data.fetching.unpacking import unpack
from metavib.data.sources.catalog import DATASETS
from metavib.data.sources.published import MissingDataError

LEAST_SHARE = 0.95  # of the published number of images: corrections come and go, half a dataset does not
ROOM = 2.1  # times the archives: they, and what is in them


@final
class ContentError(UserError):
    """A mirror's file is complete, but is not the dataset."""


class Progress(NamedTuple):
    """Functions that are told how far a download is."""

    say: Callable[[str], None] = lambda text: None
    downloaded: Callable[[str, int, int | None], None] = lambda name, done, total: None  # bytes
    unpacked: Callable[[str, int], None] = lambda name, files: None


class Fetched(NamedTuple):
    """A dataset that is there now, and whether it was before."""

    dataset: Dataset
    was_there: bool


def publication_of(name: str) -> Publication:
    """The publication of the dataset of this name."""
    if name not in PUBLICATIONS:
        raise unknown_name("dataset to fetch", name, PUBLICATIONS)
    return PUBLICATIONS[name]


def fetch(name: str, root: Path, progress: Progress = Progress()) -> Fetched:  # noqa: B008  # it is a tuple
    """Bring a dataset into the data folder, unless it is there."""
    publication = publication_of(name)
    with contextlib.suppress(MissingDataError):
        return Fetched(DATASETS[name](root, protocol=None, seed=0), was_there=True)
    place, work = root / name, root / ".fetch" / name
    if place.exists():
        raise UserError(
            f"{place} is there, but it is not {publication.title}: move it away, or choose --data."
        )
    with put_together(name, work, place) as whole:
        if publication.size is not None:
            there = sum(path.stat().st_size for path in work.glob("*"))
            needed = max(0, int(ROOM * publication.size) - there)
            require_space(root, needed, f"{publication.title}, with its archives,")
        _assemble_by_any_mirror(name, publication, whole / name, progress)
        (whole / name).rename(place)
    return Fetched(DATASETS[name](root, protocol=None, seed=0), was_there=False)


@contextlib.contextmanager
def put_together(name: str, work: Path, place: Path) -> Iterator[Path]:
    """The folder `work/whole`, for one process at a time; at the end what was downloaded in part alone is kept.

    Whoever has put a dataset together there moves it to its place.
    """
    lock = work.with_name(f"{work.name}.lock")
    atomic.make_folder(work.parent.parent)
    with atomic.locked(lock, f"another process fetches {name} into {work.parent.parent}. Wait for it."):
        try:
            yield work / "whole"
            if place.exists():
                shutil.rmtree(work, ignore_errors=True)
        finally:
            shutil.rmtree(work / "whole", ignore_errors=True)
            lock.unlink(missing_ok=True)
            for folder in (work, work.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _assemble_by_any_mirror(name: str, publication: Publication, whole: Path, progress: Progress) -> None:
    """Assemble the dataset; where what came is not it, from the next mirrors."""
    archives: Sequence[Archive] = publication.archives
    while True:
        try:
            return _assemble(name, publication, archives, whole, progress)
        except ContentError as error:
            shutil.rmtree(whole.parents[1], ignore_errors=True)
            # The first mirror of each has given what is not the dataset, or was passed over before.
            archives = [archive._replace(mirrors=archive.mirrors[1:]) for archive in archives]
            if not all(archive.mirrors for archive in archives):
                raise
            progress.say(f"{error}; trying other mirrors.")


def _assemble(
    name: str, publication: Publication, archives: Sequence[Archive], whole: Path, progress: Progress
) -> None:
    """Download and unpack everything into `whole`, `work/whole/NAME`, and open it as training will."""
    paths = [
        download(
            archive,
            whole.parents[1],
            lambda done, total, own=archive: progress.downloaded(own.name, done, total),  # type: ignore[misc]
            progress.say,
        )
        for archive in archives
    ]
    shutil.rmtree(whole, ignore_errors=True)
    with atomic.disk_errors_in_words(whole):
        whole.mkdir(parents=True)
        for archive, path in zip(archives, paths, strict=True):
            folder = whole / archive.into
            if path.suffix == ".txt":
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / archive.name)
                continue
            try:
                unpack(path, folder, lambda files, own=archive: progress.unpacked(own.name, files))  # type: ignore[misc]
            except UserError as error:
                if "the disk is full" in str(error) or " free." in str(error):
                    raise
                raise ContentError(str(error)) from error
    _check(name, publication, whole.parent, progress)


def _check(name: str, publication: Publication, root: Path, progress: Progress) -> None:
    """Open what was unpacked, and count."""
    try:
        dataset = DATASETS[name](root, protocol=None, seed=0)
    except UserError as error:
        why = "its folders are laid out otherwise" if isinstance(error, MissingDataError) else str(error)
        raise ContentError(f"what was downloaded is not {publication.title}: {why}") from error
    listings = [dataset.listing(domain) for domain in dataset.domains]
    images = sum(len(listing.names) for listing in listings)
    classes = len({label for listing in listings for label in listing.classes})
    wanted = (publication.domains, publication.classes)
    if (len(listings), classes) != wanted or images < LEAST_SHARE * publication.images:
        raise ContentError(
            f"what was downloaded is not {publication.title}: it has {len(listings)} domains, {classes} classes "
            f"and {images:,} images, not {wanted[0]}, {wanted[1]} and {publication.images:,}"
        )
    if images != publication.images:
        progress.say(f"{publication.title} has {images:,} images here; {publication.images:,} are published.")
