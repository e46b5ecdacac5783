"""A dataset looked over before training: what is in it, and what is wrong with it."""

from __future__ import annotations

import os
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from metavib.core.errors import UserError
from metavib.data.cache import finding_at
from metavib.data.confounding import remarks_on_counts
from metavib.data.dataset import Dataset, Reading, digest_of
from metavib.data.decoding import images
from metavib.data.decoding.pixel_range import BYTES, EIGHT_BIT, Extremes, PixelRange
from metavib.data.decoding.range_finding import by_depth, range_over, remember
from metavib.data.file_dataset import FileDataset
from metavib.data.likeness import Look, alike_across, look_of
from metavib.data.splits import natural_order
from metavib.data.suspicious_labels import (
    LabelCheck,
    Labelled,
    Suspicious,
    check_labels,
    features_of,
    remarks_on_labels,
    rows_to_judge,
)

FEW_IMAGES = 50  # a domain below this gives a rough estimate, as target or as validation


@dataclass(frozen=True)
class DataProblem:
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
class Alike:
    """Two images of different domains that look alike though their bytes differ."""

    names: tuple[str, str]
    domains: tuple[str, str]
    labels: tuple[str, str]
    bits: int  # in which their hashes differ, of 64


@dataclass(frozen=True)
class Report:
    """The findings of `inspect`."""

    counts: dict[str, dict[str, int]]  # images by domain and class
    sizes: Sizes | None  # None where no image can be read
    modes: dict[str, int]  # images by Pillow mode
    problems: tuple[DataProblem, ...]
    pixel_range: PixelRange | None = None  # of all domains; None where they have none in common
    extremes: Extremes | None = None  # of all values, where they are more than bytes
    alike: tuple[Alike, ...] = ()  # across domains
    labels: LabelCheck | None = None  # None where labels were not looked at

    @property
    def can_train(self) -> bool:
        return all(problem.severity != "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        extremes = self.extremes and self.extremes._asdict()
        problems = [{"severity": one.severity, "text": one.text} for one in self.problems]
        suspicious = [asdict(one) for one in self.suspicious]
        found = {"problems": problems, "extremes": extremes, "can_train": self.can_train}
        return {
            **asdict(self),
            **found,
            "labels": None if self.labels is None else {**self.labels._asdict(), "suspicious": suspicious},
        }

    def with_labels(self, check: LabelCheck) -> Report:
        """A copy of the report whose labels are judged by other features."""
        images = sum(self.modes.values())  # that can be read
        former = () if self.labels is None else remarks_on_labels(self.labels, images)
        kept = [problem for problem in self.problems if problem.text not in former]
        found = [DataProblem("warning", remark) for remark in remarks_on_labels(check, images)]
        return replace(self, labels=check, problems=(*kept, *found))

    @property
    def suspicious(self) -> tuple[Suspicious, ...]:
        return () if self.labels is None else self.labels.suspicious


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
    look: Look | None = None
    features: np.ndarray | None = None  # of its looks, where labels are looked at


def inspect(
    dataset: Dataset, size: int = 64, progress: Reading | None = None, *, judge_labels: bool = False
) -> Report:
    """Opens every image of every domain, target or not: for looking at data, never while training.

    `judge_labels` looks for labels that may be wrong, too.
    """
    places = {}
    if isinstance(dataset, FileDataset):
        # Before they are opened: a file that changes meanwhile gives another place.
        names = {domain: dataset.listing(domain).names for domain in dataset.domains}
        places = {domain: finding_at(dataset.root, own) for domain, own in names.items()}
    seen = (
        _open_files(dataset, size, progress, judge_labels)
        if isinstance(dataset, FileDataset)
        else _generate(dataset, size)
    )
    counts = {}
    for domain in dataset.domains:
        found = Counter(dataset.listing(domain).classes)
        counts[domain] = {label: found[label] for label in sorted(found, key=natural_order)}
    good = [image for image in seen if not image.bad]
    problems = [DataProblem("error", image.bad, can_be_skipped=True) for image in seen if image.bad]
    problems += _problems_of_domains(counts) + _duplicates(good)
    problems += [DataProblem("warning", remark) for remark in remarks_on_counts(counts)]
    alike = _alike(good)
    problems += _problems_of_alike(alike)
    labels = _judged(good) if judge_labels and isinstance(dataset, FileDataset) else None
    if labels is not None:
        problems += [DataProblem("warning", remark) for remark in remarks_on_labels(labels, len(good))]
    pixel_range, extremes, found_there = _range_of(good, places)
    problems += found_there
    if isinstance(dataset, FileDataset) and dataset.ignored:
        few = ", ".join(dataset.ignored[:3])
        problems.append(DataProblem("warning", f"{len(dataset.ignored)} file(s) that are not images: {few}"))
    if isinstance(dataset, FileDataset):
        problems += [DataProblem("warning", remark) for remark in dataset.remarks]
    problems.sort(key=lambda problem: problem.severity)  # stable: errors first
    sizes = Sizes(_spread([i.width for i in good]), _spread([i.height for i in good])) if good else None
    modes = dict(Counter(image.mode for image in good))
    return Report(counts, sizes, modes, tuple(problems), pixel_range, extremes, alike, labels)


def _range_of(
    good: Sequence[_Seen], places: dict[str, Path]
) -> tuple[PixelRange | None, Extremes | None, list[DataProblem]]:
    """The range of values of all domains, kept for training; an error where depths differ."""
    if all(image.depth == EIGHT_BIT for image in good):
        return BYTES if good else None, None, []
    by_domain = {}
    for domain, place in places.items():
        own = ((image.name, image.depth, image.extremes) for image in good if image.domain == domain)
        by_domain[domain] = by_depth(own)
        remember(place, by_domain[domain])
    try:
        found = range_over(by_domain)
    except UserError as error:
        return None, None, [DataProblem("error", str(error))]
    return found.pixel_range, found.extremes, [DataProblem("warning", note) for note in found.notes]


def _open_files(dataset: FileDataset, size: int, progress: Reading | None, judge_labels: bool) -> list[_Seen]:
    """All files, straight from the disk."""
    todo = []
    for domain in dataset.domains:
        listing = dataset.listing(domain)
        todo += [
            _Seen(name, domain, label) for name, label in zip(listing.names, listing.classes, strict=True)
        ]

    places = [(image.domain, image.label) for image in todo]
    judged = {todo[row].name for row in rows_to_judge(places)} if judge_labels else set()

    def look(image: _Seen) -> _Seen:
        try:
            data = images.image_bytes(dataset.root / image.name, image.name)
            width, height, mode, depth, extremes = images.scan(data, image.name)
            look = features = None
            if depth == EIGHT_BIT:  # of a deep one all values were looked at just now
                pixels = images.decode(data, image.name, size)
                look, features = look_of(pixels), features_of(pixels) if image.name in judged else None
        except images.BadImage as bad:
            return image._replace(bad=str(bad))
        return image._replace(
            digest=digest_of(data),
            width=width,
            height=height,
            mode=mode,
            depth=depth,
            extremes=extremes,
            look=look,
            features=features,
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


def _problems_of_domains(counts: dict[str, dict[str, int]]) -> list[DataProblem]:
    problems = []
    if len(counts) < 3:
        text = (
            f"only {len(counts)} domain(s): most methods learn from at least 2 beside the one that is held out. "
            "--target none holds nothing out; --algorithm erm learns from one"
        )
        problems.append(DataProblem("warning", text))
    homes: dict[str, list[str]] = defaultdict(list)  # domains by class
    for domain, found in counts.items():
        for label in found:
            homes[label].append(domain)
    if len(counts) > 1 and all(
        any(homes[label] == [domain] for label in counts[domain]) for domain in counts
    ):
        text = "every domain has a class that no other has: none can be held out, --target none trains on all"
        problems.append(DataProblem("warning", text))
    for label in sorted(homes, key=natural_order):
        missing = [domain for domain, found in counts.items() if label not in found]
        if missing:
            text = f"class {label!r} is missing from {', '.join(missing)}{_consequence(homes[label])}"
            problems.append(DataProblem("warning", text))
    for domain, found in counts.items():
        if sum(found.values()) < FEW_IMAGES:
            text = f"domain {domain!r} has only {sum(found.values())} images: results on it will be rough"
            problems.append(DataProblem("warning", text))
    return problems


def _consequence(homes: Sequence[str]) -> str:
    """The consequence for training where these domains alone have a class."""
    if len(homes) == 1:
        return f"; {homes[0]} cannot be the target, and what is learnt of the class comes from there alone"
    if len(homes) == 2:
        return f"; with {homes[0]} or {homes[1]} as target, it is learnt from the other one alone"
    return ""


def _duplicates(seen: Sequence[_Seen]) -> list[DataProblem]:
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
        problems.append(DataProblem("warning", text))
    return problems


def _alike(seen: Sequence[_Seen]) -> tuple[Alike, ...]:
    """Images that look alike across domains; identical ones are told of apart."""
    pairs = alike_across([image.look for image in seen], [image.domain for image in seen])
    both = [(seen[pair.first], seen[pair.second], pair.bits) for pair in pairs]
    return tuple(
        Alike((one.name, other.name), (one.domain, other.domain), (one.label, other.label), bits)
        for one, other, bits in both
        if one.digest != other.digest
    )


def _problems_of_alike(alike: Sequence[Alike]) -> list[DataProblem]:
    if not alike:
        return []
    few = "; ".join(" ~ ".join(pair.names) for pair in alike[:3])
    more = f"; and {len(alike) - 3} more" if len(alike) > 3 else ""
    labels = sum(pair.labels[0] != pair.labels[1] for pair in alike)
    differ = f", {labels} of them in different classes" if labels else ""
    text = (
        f"{len(alike)} pair(s) of images look alike across domains{differ}: {few}{more}. An unseen domain that "
        "shares images with the sources is not unseen"
    )
    return [DataProblem("warning", text)]


def _judged(seen: Sequence[_Seen]) -> LabelCheck:
    """The labels of all images whose features are known."""
    return check_labels(
        [
            Labelled(image.name, image.domain, image.label, image.features)
            for image in seen
            if image.features is not None
        ]
    )


def _spread(values: Sequence[int]) -> tuple[int, int, int]:
    return min(values), round(statistics.median(values)), max(values)
