"""Terra Incognita (Beery et al., "Recognition in terra incognita", ECCV 2018), as DomainBed divides it.

Gulrajani and Lopez-Paz ("In search of lost domain generalization", ICLR 2021) take four of its cameras as domains
and ten of its classes. Labels come from the authors' annotations, or from the folders `location_38/<class>/*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.published import home_of, missing, require_classes, require_files, scan_domain

CAMERAS = ("38", "43", "46", "100")
CLASSES = (*("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),)
NAMES = ("terra-incognita", "terra_incognita")
IMAGES, ANNOTATIONS = "eccv_18_all_images_sm", "eccv_18_annotation_files"
PROTOCOL = "4 cameras, 10 classes, stratified split"


def open_terra_incognita(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """Animals before four camera traps, the domains; 10 classes, one of them empty."""
    home = home_of(root, NAMES, ("",), [f"location_{camera}" for camera in CAMERAS])
    if home is not None:
        files, ignored = {}, []
        for camera in CAMERAS:
            folder = f"location_{camera}"
            files[folder], others = scan_domain(home, folder, {}, "Terra Incognita")
            ignored += others
        require_classes(files, CLASSES, "Terra Incognita")
        return FileDataset("terra-incognita", home, files, protocol=PROTOCOL, ignored=ignored)
    home = home_of(root, NAMES, ("",), (IMAGES, ANNOTATIONS))
    if home is None:
        expected = f"{root}/terra-incognita/{{{IMAGES},{ANNOTATIONS}}}, or location_<camera>/<class>/* in it"
        raise missing("terra-incognita", "Terra Incognita", root, expected)
    return _by_annotations(home)


def _by_annotations(home: Path) -> Dataset:
    """Labels from the annotations; an image with animals of two classes is left out."""
    labels: dict[str, set[str]] = {}
    pictures: dict[str, Mapping[str, Any]] = {}
    paths = sorted((home / ANNOTATIONS).glob("*.json"))
    if not paths:
        raise UserError(f"{home / ANNOTATIONS} has no annotations (*.json); unpack it again")
    for path in paths:
        try:
            found = untrusted.json_in(path, untrusted.TABLE_BYTES)
            names = {one["id"]: str(one["name"]) for one in found["categories"]}
            pictures |= {str(one["id"]): one for one in found["images"] if str(one["location"]) in CAMERAS}
            for one in found["annotations"]:
                labels.setdefault(str(one["image_id"]), set()).add(names[one["category_id"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error!r:.80}); unpack it again") from error
    files: dict[str, list[File]] = {f"location_{camera}": [] for camera in CAMERAS}
    ambiguous = 0
    for identity, picture in pictures.items():
        known = labels.get(identity, set()) & set(CLASSES)
        ambiguous += len(known) > 1
        if len(known) == 1:
            name = f"{IMAGES}/{picture['file_name']}"
            if ".." in name:
                raise UserError(f"{home / ANNOTATIONS} names {name!r}, which lies outside; unpack it again")
            files[f"location_{picture['location']}"].append(File(name, known.pop(), ""))
    for domain, members in files.items():
        if not members:
            raise UserError(f"Terra Incognita in {home} has no image of {domain}; unpack it again")
        members.sort()
    require_files(home, [file.path for members in files.values() for file in members], "Terra Incognita")
    remarks = [f"{ambiguous} images show animals of two classes: they are left out"] if ambiguous else []
    return FileDataset("terra-incognita", home, files, protocol=PROTOCOL, remarks=remarks)
