"""The page of `metavib data --page`: counts, problems, and thumbnails of images to look at.

One HTML file that asks the network for nothing. Images that cannot be read any more have no thumbnail.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from metavib import __version__
from metavib.core.errors import require_installed
from metavib.core.foreign_text import readable
from metavib.data.dataset import Dataset
from metavib.data.decoding import images
from metavib.data.file_dataset import FileDataset
from metavib.data.inspection import Alike, Report
from metavib.data.splits import natural_order

MOST_PAIRS = 60  # with thumbnails; more are counted
MOST_SUSPICIOUS = 120
PER_CELL = 3  # thumbnails of a class in a domain
MOST_CELLS = 120
SIDE = 96  # pixels of a thumbnail


def data_page(dataset: Dataset, report: Report) -> str:
    """The text of the file."""
    require_installed("jinja2", "the page needs jinja2", package="jinja2")
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files("metavib.reports").joinpath("data_page.html.jinja").read_text(encoding="utf-8")
    root = dataset.root if isinstance(dataset, FileDataset) else None
    classes = sorted({label for found in report.counts.values() for label in found}, key=natural_order)
    html = environment.from_string(template).render(
        title=readable(dataset.name),
        protocol=readable(dataset.protocol),
        domains=[readable(domain) for domain in report.counts],
        rows=[
            (readable(label), [found.get(label, 0) for found in report.counts.values()]) for label in classes
        ],
        problems=[(problem.severity, readable(problem.text)) for problem in report.problems],
        pairs=[_pair(root, pair) for pair in report.alike[:MOST_PAIRS]],
        more_pairs=max(0, len(report.alike) - MOST_PAIRS),
        suspicious=[
            {
                "name": readable(one.name),
                "where": readable(f"{one.domain}, {one.label}"),
                "looks_like": readable(one.looks_like),
                "address": thumbnail(root, one.name),
            }
            for one in report.suspicious[:MOST_SUSPICIOUS]
        ],
        more_suspicious=max(0, len(report.suspicious) - MOST_SUSPICIOUS),
        samples=_samples(dataset, root, classes),
        can_train=report.can_train,
        version=__version__,
    )
    return html.encode(errors="backslashreplace").decode()


def _pair(root: Path | None, pair: Alike) -> dict[str, Any]:
    sides = zip(pair.names, pair.domains, pair.labels, strict=True)
    return {
        "bits": pair.bits,
        "images": [
            {
                "name": readable(name),
                "where": readable(f"{domain}, {label}"),
                "address": thumbnail(root, name),
            }
            for name, domain, label in sides
        ],
    }


def _samples(dataset: Dataset, root: Path | None, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The first images of each class in each domain, to be looked at."""
    if root is None or len(classes) * len(dataset.domains) > MOST_CELLS:
        return []
    rows = []
    for label in classes:
        cells = []
        for domain in dataset.domains:
            listing = dataset.listing(domain)
            own = [name for name, one in zip(listing.names, listing.classes, strict=True) if one == label]
            cells.append([(readable(name), thumbnail(root, name)) for name in own[:PER_CELL]])
        rows.append({"label": readable(label), "cells": cells})
    return rows


def thumbnail(root: Path | None, name: str) -> str | None:
    """A small image as an address that holds it; None where it cannot be read."""
    if root is None:
        return None
    try:
        pixels = images.decode(images.image_bytes(root / name, name), name, SIDE)
    except images.BadImage:
        return None
    out = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
