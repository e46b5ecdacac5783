"""A dataset looked over before training: what is in it, and what is wrong with it."""

from __future__ import annotations

import os
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from metavib.data import images
from metavib.data.dataset import Dataset, FileDataset, Progress, digest_of
from metavib.data.splits import natural_order

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

    @property
    def can_train(self) -> bool:
        return all(problem.severity != "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        problems = [{"severity": one.severity, "text": one.text} for one in self.problems]
        return {**asdict(self), "problems": problems, "can_train": self.can_train}


class _Seen(NamedTuple):
    """One image that was opened."""

    name: str
    domain: str
    label: str
    digest: str = ""
    width: int = 0
    height: int = 0
    mode: str = ""
    bad: str = ""  # what is wrong with it


def inspect(dataset: Dataset, size: int = 64, progress: Progress | None = None) -> Report:
    """Opens every image of every domain, target or not: for looking at data, never while training."""
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
    if isinstance(dataset, FileDataset) and dataset.ignored:
        few = ", ".join(dataset.ignored[:3])
        problems.append(Problem("warning", f"{len(dataset.ignored)} file(s) that are no images: {few}"))
    if isinstance(dataset, FileDataset):
        problems += [Problem("warning", remark) for remark in dataset.remarks]
    problems.sort(key=lambda problem: problem.severity)  # stable: errors first
    sizes = Sizes(_spread([i.width for i in good]), _spread([i.height for i in good])) if good else None
    return Report(counts, sizes, dict(Counter(image.mode for image in good)), tuple(problems))


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
            images.decode(data, image.name, size)
            width, height, mode = images.describe(data, image.name)
        except images.BadImage as bad:
            return image._replace(bad=str(bad))
        return image._replace(digest=digest_of(data), width=width, height=height, mode=mode)

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
        text = f"only {len(counts)} domain(s): training needs at least 2 source domains and a target"
        problems.append(Problem("error", text))
    homes: dict[str, list[str]] = defaultdict(list)  # domains by class
    for domain, found in counts.items():
        for label in found:
            homes[label].append(domain)
    if len(counts) > 1 and all(
        any(homes[label] == [domain] for label in counts[domain]) for domain in counts
    ):
        text = "every domain has a class that no other has: whichever is the target, it cannot be learnt"
        problems.append(Problem("error", text))
    for label in sorted(homes, key=natural_order):
        missing = [domain for domain, found in counts.items() if label not in found]
        alone = f"; {homes[label][0]} cannot be the target" if len(homes[label]) == 1 else ""
        if missing:
            problems.append(
                Problem("warning", f"class {label!r} is missing from {', '.join(missing)}{alone}")
            )
    for domain, found in counts.items():
        if sum(found.values()) < FEW_IMAGES:
            text = f"domain {domain!r} has only {sum(found.values())} images: results on it will be rough"
            problems.append(Problem("warning", text))
    return problems


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
