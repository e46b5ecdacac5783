"""The range of values that image files really use, found once and remembered until a file changes."""

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.data.cache import finding_at
from metavib.data.dataset import FoundRange, Reading
from metavib.data.decoding import images
from metavib.data.decoding.pixel_range import BYTES, DEPTHS, EIGHT_BIT, Extremes, covering, narrow

_AT_A_TIME = 1024  # files that are handed to threads


class Depth(NamedTuple):
    """All files of one depth in a domain."""

    example: str  # the first of them
    extremes: Extremes


Depths = dict[str, Depth]  # of a domain, by depth


def find_range(root: Path, names: Mapping[str, Sequence[str]], progress: Reading | None) -> FoundRange:
    """The range of all files, given by domain.

    Where the first file has 8 bits, no other is opened: one that has more is refused when it is decoded. Otherwise
    all are opened, unless they were before. Files that cannot be read play no part here: decoding names them.
    """
    first = next(_readable(root, names), None)
    if first is None or first[1] == EIGHT_BIT:
        return FoundRange(BYTES, first[0] if first else "")
    found = {domain: depths_in(root, own, progress) for domain, own in names.items()}
    if not any(found.values()):  # damaged, all of them
        return FoundRange(covering(first[1], Extremes(0, 0)), first[0])
    return range_over(found)


def range_over(found: Mapping[str, Depths]) -> FoundRange:
    """The range of domains; files of different depth are refused, with an example of each."""
    examples: dict[str, str] = {}
    by_domain: dict[str, Extremes] = {}
    for domain, depths in found.items():
        for depth, (example, extremes) in depths.items():
            examples.setdefault(depth, example)
            by_domain[domain] = extremes
    if len(examples) != 1:
        raise different_depths(examples)
    ((depth, example),) = examples.items()
    whole = Extremes(min(e.low for e in by_domain.values()), max(e.high for e in by_domain.values()))
    pixel_range = covering(depth, whole)
    notes = narrow(pixel_range, by_domain.items()) if pixel_range.deep else []
    return FoundRange(pixel_range, example, whole, tuple(notes))


def different_depths(examples: Mapping[str, str]) -> UserError:
    """The one error for a mixture; `examples` has a file of each depth."""
    text = ", ".join(f"{examples[depth]} is {depth}" for depth in DEPTHS if depth in examples)
    return UserError(
        f"the files have different bit depths: {text}. Their values cannot be compared: convert them to one depth."
    )


def depths_in(root: Path, names: Sequence[str], progress: Reading | None) -> Depths:
    """The depths of a domain's files with their extremes: remembered, or from all their pixels."""
    place = finding_at(root, names)
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        remembered = untrusted.json_in(place, untrusted.RECORD_BYTES)
        return {depth: Depth(name, Extremes(*values)) for depth, (name, values) in remembered.items()}

    def look(name: str) -> images.Scanned | None:
        try:
            return images.scan(images.image_bytes(root / name, name), name)
        except images.BadImage:
            return None

    scanned: list[tuple[str, images.Scanned]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata
        for start in range(0, len(names), _AT_A_TIME):
            some = names[start : start + _AT_A_TIME]
            scanned += [
                (name, file)
                for name, file in zip(some, pool.map(look, some), strict=True)
                if file is not None
            ]
            if progress:
                progress(start + len(some), len(names))
    found = by_depth((name, file.depth, file.extremes) for name, file in scanned)
    remember(place, found)
    return found


def by_depth(files: Iterable[tuple[str, str, Extremes]]) -> Depths:
    """Names, depths and extremes of files as one for each depth."""
    found: Depths = {}
    for name, depth, extremes in files:
        before = found.get(depth, Depth(name, extremes))
        found[depth] = Depth(before.example, before.extremes.joined(extremes))
    return found


def remember(place: Path, found: Depths) -> None:
    """Keep what was found in deep files. Where the cache cannot be written, they are opened again."""
    if any(depth != EIGHT_BIT for depth in found):
        with contextlib.suppress(OSError, UserError):
            atomic.write_json(place, found)


def _readable(root: Path, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Name and depth of each file with a readable header."""
    for own in names.values():
        for name in own:
            with contextlib.suppress(images.BadImage):
                yield name, images.depth(images.image_bytes(root / name, name), name)
