"""A dataset looked over before training: what is in it, and what is wrong with it."""

from __future__ import annotations

import os
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metavib.data import images
from metavib.data.cache import finding_at
from metavib.data.dataset import Dataset, FileDataset, Progress, digest_of
from metavib.data.pixel_range import BYTES, EIGHT_BIT, Extremes, PixelRange
from metavib.data.range_finding import gathered, range_over, remember
from metavib.data.splits import natural_order
from metavib.errors import UserError

FEW_IMAGES = 50  # a domain below this gives a rough estimate, as target or as validation


@dataclass(frozen=True)
class Problem:
    """Something that should be looked at; an error keeps training from starting."""

    severity: Literal["error", "warning"]
    text: str
    can_be_skipped: bool = False  # an image that `--skip-bad` leaves out


@dataclass(frozen=True)
class Sizes:
    """Widths and heights of all readable images, smallest, median and largest."""

    width: tuple[int, int, int]
    height: tuple[int, int, int]


@dataclass(frozen=True)
class Report:
    """What `inspect` found."""

    counts: dict[str, dict[str, int]]  # images by domain and class
    sizes: Sizes | None  # None where no image can be read
    modes: dict[str, int]  # images by Pillow mode
    problems: tuple[Problem, ...]
    pixel_range: PixelRange | None = None  # of all domains; None where they have none in common
    extremes: Extremes | None = None  # of all values, where they are more than bytes

    @property
    def can_train(self) -> bool:
        return all(problem.severity != "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        extremes = self.extremes and self.extremes._asdict()
        problems = [{"severity": one.severity, "text": one.text} for one in self.problems]
        return {**asdict(self), "problems": problems, "extremes": extremes, "can_train": self.can_train}


class _Seen(NamedTuple):
    """One image that was opened."""

    name: str
    domain: str
    label: str
    digest: str = ""
    width: int = 0
    height: int = 0
    mode: str = ""
    depth: str = EIGHT_BIT
    extremes: Extremes = Extremes(0, 255)
    bad: str = ""  # what is wrong with it


def inspect(dataset: Dataset, size: int = 64, progress: Progress | None = None) -> Report:
    """Opens every image of every domain, target or not: for looking at data, never while training."""
    places = {}
    if isinstance(dataset, FileDataset):
        # Before they are opened: a file that changes meanwhile gives another place.
        names = {domain: dataset.listing(domain).names for domain in dataset.domains}
        places = {domain: finding_at(dataset.root, own) for domain, own in names.items()}
    seen = (
        _open_files(dataset, size, progress) if isinstance(dataset, FileDataset) else _generate(dataset, size)
    )
    counts = {}
    for domain in dataset.domains:
        found = Counter(dataset.listing(domain).classes)
        counts[domain] = {label: found[label] for label in sorted(found, key=natural_order)}
    good = [image for image in seen if not image.bad]
    problems = [Problem("error", image.bad, can_be_skipped=True) for image in seen if image.bad]
    problems += _problems_of_domains(counts) + _duplicates(good)
    pixel_range, extremes, found_there = _range_of(good, places)
    problems += found_there
    if isinstance(dataset, FileDataset) and dataset.ignored:
        few = ", ".join(dataset.ignored[:3])
        problems.append(Problem("warning", f"{len(dataset.ignored)} file(s) that are no images: {few}"))
    if isinstance(dataset, FileDataset):
        problems += [Problem("warning", remark) for remark in dataset.remarks]
    problems.sort(key=lambda problem: problem.severity)  # stable: errors first
    sizes = Sizes(_spread([i.width for i in good]), _spread([i.height for i in good])) if good else None
    modes = dict(Counter(image.mode for image in good))
    return Report(counts, sizes, modes, tuple(problems), pixel_range, extremes)


def _range_of(
    good: Sequence[_Seen], places: dict[str, Path]
) -> tuple[PixelRange | None, Extremes | None, list[Problem]]:
    """The range of values of all domains, kept for training; an error where depths differ."""
    if all(image.depth == EIGHT_BIT for image in good):
        return BYTES if good else None, None, []
    by_domain = {}
    for domain, place in places.items():
        own = ((image.name, image.depth, image.extremes) for image in good if image.domain == domain)
        by_domain[domain] = gathered(own)
        remember(place, by_domain[domain])
    try:
        found = range_over(by_domain)
    except UserError as error:
        return None, None, [Problem("error", str(error))]
    return found.pixel_range, found.extremes, [Problem("warning", note) for note in found.notes]


def _open_files(dataset: FileDataset, size: int, progress: Progress | None) -> list[_Seen]:
    """All files, straight from the disk."""
    todo = []
    for domain in dataset.domains:
        listing = dataset.listing(domain)
        todo += [
            _Seen(name, domain, label) for name, label in zip(listing.names, listing.classes, strict=True)
        ]

    def look(image: _Seen) -> _Seen:
        try:
            data = images.read(dataset.root / image.name, image.name)
            width, height, mode, depth, extremes = images.scan(data, image.name)
            if depth == EIGHT_BIT:  # of a deep one all values were looked at just now
                images.decode(data, image.name, size)
        except images.BadImage as bad:
            return image._replace(bad=str(bad))
        return image._replace(
            digest=digest_of(data), width=width, height=height, mode=mode, depth=depth, extremes=extremes
        )

    seen = []
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata
        for image in pool.map(look, todo):
            seen.append(image)
            if progress:
                progress(len(seen), len(todo))
    return seen


def _generate(dataset: Dataset, size: int) -> list[_Seen]:
    seen = []
    for domain in dataset.domains:
        listing = dataset.listing(domain)
        digests = dataset.images(domain, size).digests
        rows = zip(listing.names, listing.classes, digests, strict=True)
        mode = "L" if dataset.channels == 1 else "RGB"
        seen += [_Seen(name, domain, label, digest, size, size, mode) for name, label, digest in rows]
    return seen


def _problems_of_domains(counts: dict[str, dict[str, int]]) -> list[Problem]:
    problems = []
    if len(counts) < 3:
        text = (
            f"only {len(counts)} domain(s): most methods learn from at least 2 beside the one that is held out. "
            "--target none holds nothing out; --algorithm erm learns from one"
        )
        problems.append(Problem("warning", text))
    homes: dict[str, list[str]] = defaultdict(list)  # domains by class
    for domain, found in counts.items():
        for label in found:
            homes[label].append(domain)
    if len(counts) > 1 and all(
        any(homes[label] == [domain] for label in counts[domain]) for domain in counts
    ):
        text = "every domain has a class that no other has: none can be held out, --target none trains on all"
        problems.append(Problem("warning", text))
    for label in sorted(homes, key=natural_order):
        missing = [domain for domain, found in counts.items() if label not in found]
        if missing:
            text = f"class {label!r} is missing from {', '.join(missing)}{_consequence(homes[label])}"
            problems.append(Problem("warning", text))
    for domain, found in counts.items():
        if sum(found.values()) < FEW_IMAGES:
            text = f"domain {domain!r} has only {sum(found.values())} images: results on it will be rough"
            problems.append(Problem("warning", text))
    return problems


def _consequence(homes: Sequence[str]) -> str:
    """What it means for training that these domains alone have a class."""
    if len(homes) == 1:
        return f"; {homes[0]} cannot be the target, and what is learnt of the class comes from there alone"
    if len(homes) == 2:
        return f"; with {homes[0]} or {homes[1]} as target, it is learnt from the other one alone"
    return ""


def _duplicates(seen: Sequence[_Seen]) -> list[Problem]:
    """Byte-identical images, by what they have in common."""
    same_bytes = defaultdict(list)
    for image in seen:
        same_bytes[image.digest].append(image)
    by_kind = defaultdict(list)
    for group in same_bytes.values():
        if len(group) > 1:
            domains = "across domains" if len({image.domain for image in group}) > 1 else "within a domain"
            labels = "in different classes" if len({image.label for image in group}) > 1 else "within a class"
            by_kind[f"{domains}, {labels}"].append(" = ".join(image.name for image in group))
    problems = []
    for kind, groups in sorted(by_kind.items()):
        more = f"; and {len(groups) - 3} more" if len(groups) > 3 else ""
        text = f"identical images {kind}: {'; '.join(groups[:3])}{more}"
        problems.append(Problem("warning", text))
    return problems


def _spread(values: Sequence[int]) -> tuple[int, int, int]:
    return min(values), round(statistics.median(values)), max(values)
