"""`hf:OWNER/NAME`: a public dataset of the Hugging Face hub, whole in the data folder or not there at all.

The hub lists a dataset's files with sizes and sha256. Its Parquet files are downloaded as any archive is, and
their images written beside a table. A dataset in another form has Parquet files that the hub made of it, in a
branch. No code of the hub runs.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError, require_installed, require_known
from metavib.data.fetching.download import AGENT, SECONDS, download, in_gigabytes, require_space
from metavib.data.fetching.fetch import ROOM, Fetched, Progress, put_together
from metavib.data.fetching.parquet_images import ColumnError, Columns, Part, Written, write_images
from metavib.data.fetching.publications import Archive
from metavib.data.sources.hugging_face import TABLE, Repository, open_hugging_face, repository_of
from metavib.data.sources.manifest import open_manifest

HUB = "https://huggingface.co"
CONVERTED = "refs/convert/parquet"  # the branch with what the hub made of other forms
RECORD = "source.json"  # beside the table: where the images are from
SHARD = re.compile(r"(?P<split>.+?)-\d+-of-\d+(-\w+)?")


class HubFile(NamedTuple):
    """A Parquet file of a dataset."""

    path: str
    size: int
    sha256: str | None
    subset: str
    split: str


class HubListing(NamedTuple):
    """The hub's description of a dataset."""

    revision: str
    licence: str
    files: tuple[HubFile, ...]


def fetch_from_hub(
    name: str,
    root: Path,
    columns: Columns = Columns(),  # noqa: B008  # it is a tuple
    subset: str | None = None,
    progress: Progress = Progress(),  # noqa: B008
) -> Fetched:
    """Bring a dataset of the hub into the data folder, unless it is there."""
    repository = repository_of(name)
    place = repository.place(root)
    if (place / TABLE).is_file():
        _require_same(place, columns, subset)
        return Fetched(open_hugging_face(name, root), was_there=True)
    if place.exists():
        raise UserError(f"{place} is there, but no dataset of the hub: move it away, or choose --data.")
    require_installed("pyarrow", "datasets of the Hugging Face hub need pyarrow", extra="hf")
    work = root / ".fetch" / f"hf-{repository.owner}-{repository.name}"
    with put_together(name, work, place) as whole:
        listed = listing(repository)
        files = _of_subset(listed.files, subset, repository)
        _tell(repository, listed, files, progress)
        _assemble(repository, listed, files, work, columns, subset, progress)
        atomic.make_folder(place.parent)
        whole.rename(place)
    return Fetched(open_hugging_face(name, root), was_there=False)


def listing(repository: Repository) -> HubListing:
    """The Parquet files of the dataset, or of what the hub made of it."""
    for branch in ("main", CONVERTED):
        found = _asked(repository, branch)
        files = tuple(_file_of(one, converted=branch == CONVERTED) for one in _siblings(found))
        parquet = tuple(file for file in files if file.path.endswith(".parquet"))
        if parquet:
            card = found.get("cardData")
            licence = card.get("license") if isinstance(card, dict) else None
            return HubListing(str(found.get("sha", branch)), str(licence or "none is published"), parquet)
    raise UserError(
        f"{repository} has no Parquet files, and the hub made none of it: download it by hand, and name the "
        "folder."
    )


def _asked(repository: Repository, branch: str) -> dict[str, Any]:
    """The hub's answer about one branch; empty where there is no such branch."""
    address = (
        f"{_endpoint()}/api/datasets/{repository}/revision/{urllib.parse.quote(branch, safe='')}?blobs=true"
    )
    request = urllib.request.Request(address, headers={"User-Agent": AGENT})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            content = answer.read(untrusted.RECORD_BYTES)
        found = untrusted.json_from(content)
    except urllib.error.HTTPError as error:
        if error.code == 404 and branch == CONVERTED:
            return {}
        if error.code in (401, 403, 404):
            raise UserError(
                f"the Hugging Face hub has no public dataset {repository} (it answers {error.code}). Check the "
                "name; one that needs a login is downloaded by hand."
            ) from error
        raise UserError(
            f"the Hugging Face hub answers {error.code} {error.reason}. Try again later."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"the Hugging Face hub cannot be reached ({reason}). Try again later.") from error
    except ValueError as error:
        raise UserError(f"the Hugging Face hub did not answer in JSON ({error}).") from error
    if not isinstance(found, dict):
        raise UserError("the Hugging Face hub answered in an unknown form.")
    return found


def _siblings(found: dict[str, Any]) -> list[dict[str, Any]]:
    siblings = found.get("siblings", [])
    return [one for one in siblings if isinstance(one, dict) and isinstance(one.get("rfilename"), str)]


def _file_of(sibling: dict[str, Any], *, converted: bool) -> HubFile:
    """A file with the subset and the split that its path names."""
    path = PurePosixPath(sibling["rfilename"])
    stored = sibling.get("lfs") if isinstance(sibling.get("lfs"), dict) else {}
    digest = stored.get("sha256") if stored else None
    size = sibling.get("size")
    folder = path.parent.as_posix()
    if converted:  # subset/split/0000.parquet
        subset, split = path.parts[0], path.parent.name.removeprefix("partial-")
    else:
        shard = SHARD.fullmatch(path.stem)
        subset, split = "" if folder in (".", "data") else folder, shard["split"] if shard else path.stem
    return HubFile(
        path.as_posix(),
        size if isinstance(size, int) else 0,
        digest if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) else None,
        subset,
        split,
    )


def _of_subset(files: Sequence[HubFile], wanted: str | None, repository: Repository) -> list[HubFile]:
    subsets = sorted({file.subset for file in files})
    if wanted is not None:
        require_known(f"subset of {repository}", wanted, subsets)
        return [file for file in files if file.subset == wanted]
    if len(subsets) > 1:
        names = ", ".join(subset or "''" for subset in subsets)
        raise UserError(f"{repository} has several subsets: name one by --subset. They are {names}")
    return list(files)


def _tell(repository: Repository, listed: HubListing, files: Sequence[HubFile], progress: Progress) -> None:
    size = in_gigabytes(sum(file.size for file in files))
    progress.say(
        f"{repository} of the Hugging Face hub, {size} to download, revision {listed.revision[:12]}."
    )
    progress.say(f"licence: {listed.licence}. See {_endpoint()}/datasets/{repository}")


def _assemble(
    repository: Repository,
    listed: HubListing,
    files: Sequence[HubFile],
    work: Path,
    wanted: Columns,
    subset: str | None,
    progress: Progress,
) -> None:
    """Download the files, and write their images and the table into `work/whole`."""
    there = sum(path.stat().st_size for path in work.glob("*") if path.is_file())
    needed = max(0, int(ROOM * sum(file.size for file in files)) - there)
    require_space(work, needed, f"{repository}, with its archives,")
    parts = []
    for number, file in enumerate(files):
        address = (
            f"{_endpoint()}/datasets/{repository}/resolve/{listed.revision}/{urllib.parse.quote(file.path)}"
        )
        archive = Archive(f"{listed.revision[:12]}-{number:05}.parquet", (address,), file.size, file.sha256)
        title = PurePosixPath(file.path).name
        path = download(
            archive,
            work,
            lambda done, total, own=title: progress.downloaded(own, done, total),  # type: ignore[misc]
            progress.say,
        )
        parts.append(Part(path, file.split))
    whole = work / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    try:
        with atomic.disk_errors_in_words(whole):
            whole.mkdir(parents=True)
            written = write_images(
                parts, whole, wanted, lambda images: progress.unpacked(str(repository), images)
            )
        dataset = open_manifest(whole / TABLE)
    except UserError as error:
        text = str(error).replace(f"{whole}{os.sep}", "")
        if isinstance(error, ColumnError):  # what was downloaded is kept for the command that names them
            raise ColumnError(f"{repository}: {text}") from error
        shutil.rmtree(work, ignore_errors=True)
        raise UserError(f"{repository}: {text}") from error
    if written.unlabelled:
        progress.say(f"{written.unlabelled:,} images without a label were left out.")
    progress.say(_in_words(written, len(dataset.domains)))
    record = {"repository": str(repository), "revision": listed.revision, "licence": listed.licence}
    taken = {"subset": subset, "columns": written.columns._asdict()}
    atomic.write_json(whole / RECORD, record | taken)


def _in_words(written: Written, domains: int) -> str:
    image, label, domain = written.columns
    return f"images from {image!r}, labels from {label!r}, {domains} domain(s) from {domain!r}."


def _require_same(place: Path, columns: Columns, subset: str | None) -> None:
    """Refuse a wish for other columns than those that were taken."""
    try:
        found = untrusted.json_in(place / RECORD, untrusted.RECORD_BYTES)
        taken = {**found["columns"], "subset": found["subset"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place / RECORD} is damaged: move {place} away, and fetch again.") from error
    for name, value in {**columns._asdict(), "subset": subset}.items():
        if value is not None and taken.get(name) != value:
            raise UserError(
                f"{place} is there already, with {taken.get(name)!r} as {name}: move it away to fetch it "
                "otherwise."
            )


def _endpoint() -> str:
    """The hub, or where HF_ENDPOINT says it is, as for Hugging Face's own libraries."""
    given = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    if not given.startswith(("http://", "https://")):
        raise UserError(f"HF_ENDPOINT is {given!r}, which is not a web address.")
    return given
