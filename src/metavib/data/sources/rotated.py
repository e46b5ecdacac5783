"""Digits turned by six angles, one domain an angle: MNIST, or scikit-learn's digits, which need no download.

Protocols: "paper" takes 1,000 random training digits, 100 a class, and turns the same ones by every angle
(MetaVIB, ECCV 2020); 100 others, 10 a class, are the source validation images, so that all 1,000 of each source
angle are trained on and all 1,000 of the unseen angle are tested. The paper does not say which way it turns
them; counter-clockwise is the usual way (torchvision's, DomainBed's). It matters: digits that were never seen
upright are some 3 points easier to read after clockwise ones, which "paper-clockwise" turns. "domainbed"
shuffles all 70,000 digits and deals them out over the angles (Gulrajani and Lopez-Paz, "In search of lost domain
generalization", ICLR 2021).
"""

from __future__ import annotations

import functools
import hashlib
import urllib.request
import zlib
from collections.abc import Callable
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError, require_installed, require_known
from metavib.core.shapes import Int, UInt8
from metavib.data.dataset import Dataset, DomainImages, Listing, Reading, digest_of
from metavib.nn.randomness import key_of, permutation

ANGLES = ("0", "15", "30", "45", "60", "75")  # degrees
PROTOCOLS = {
    "paper": "paper: the same 1,000 digits at six angles, 100 others for source validation",
    "paper-clockwise": "paper-clockwise: the same 1,000 digits turned clockwise, 100 others for source validation",
    "domainbed": "domainbed: all 70,000 digits dealt out over six angles",
}

_SIDE = 28
_PER_CLASS = 100
_VALIDATING_PER_CLASS = 10
_MOST_BYTES = 64 << 20  # the largest of the four files has 47 million
_SECONDS = 30.0  # that a mirror may be silent
_MD5_UNPACKED = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Digits(NamedTuple):
    """Where upright digits come from; labels apart, because a listing opens no images."""

    labels: Callable[[], UInt8[np.ndarray, "count"]]
    images: Callable[[], UInt8[np.ndarray, "count 28 28"]]


@final
class RotatedDigits(Dataset):
    """Digits of a source, turned by the angle that is the domain's name."""

    def __init__(self, name: str, source: Digits, *, protocol: str, seed: int) -> None:
        self.name = name
        self.domains = ANGLES
        self.channels = 1
        self.protocol = PROTOCOLS[protocol]
        self._source = source
        self._dealt_out = protocol == "domainbed"
        self._direction = -1.0 if protocol == "paper-clockwise" else 1.0
        self._seed = seed
        self._listings: dict[str, Listing] = {}  # the runs of a grid share these
        self._turned: dict[tuple[str, int], DomainImages] = {}

    def listing(self, domain: str) -> Listing:
        if domain not in self._listings:
            self._listings[domain] = self._list(domain)
        return self._listings[domain]

    def _list(self, domain: str) -> Listing:
        members, validating = self._members(domain)
        names = tuple(f"digit-{index:05}" for index in members)
        classes = tuple(str(label) for label in self._labels[members])
        if self._dealt_out:
            return Listing(domain, names, classes, ("",) * len(names))
        parts = tuple("crossval" if index in validating else "train and test" for index in members)
        return Listing(domain, names, classes, parts)

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        if (domain, size) not in self._turned:
            self._turned[domain, size] = self._turn(domain, size)
        turned = self._turned[domain, size]
        if progress:
            progress(len(turned.kept), len(turned.kept))
        return turned

    def _turn(self, domain: str, size: int) -> DomainImages:
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as transforms

        upright = torch.from_numpy(self._upright[self._members(domain)[0]])[:, None]
        turned = transforms.rotate(
            upright, self._direction * float(domain), interpolation=InterpolationMode.BILINEAR
        )
        digests = tuple(digest_of(digit.tobytes()) for digit in turned.numpy())
        if size != _SIDE:
            turned = transforms.resize(turned, [size, size])
        return DomainImages(turned.numpy(), tuple(range(len(turned))), digests, ())

    @cached_property
    def _labels(self) -> UInt8[np.ndarray, "count"]:
        return self._source.labels()

    @cached_property
    def _upright(self) -> UInt8[np.ndarray, "count 28 28"]:
        return self._source.images()

    def _members(self, domain: str) -> tuple[Int[np.ndarray, "members"], frozenset[int]]:
        """Positions in the source of a domain's digits, and those of them that only validate."""
        require_known("domain", domain, ANGLES)
        shuffled = permutation(key_of(self._seed, "digits"), len(self._labels)).numpy()
        if self._dealt_out:
            return shuffled[ANGLES.index(domain) :: len(ANGLES)], frozenset()
        labels = self._labels[shuffled]
        chosen = [shuffled[labels == label][: _PER_CLASS + _VALIDATING_PER_CLASS] for label in range(10)]
        validating = np.concatenate([of_class[_PER_CLASS:] for of_class in chosen])
        return np.sort(np.concatenate(chosen)), frozenset(validating.tolist())


def open_rotated_digits(root: Path | None = None, *, protocol: str | None = None, seed: int) -> Dataset:
    """scikit-learn's handwritten digits, 1,000 of them at six angles; no download."""

    def labels() -> UInt8[np.ndarray, "count"]:
        return np.asarray(_scikit_digits().target, dtype=np.uint8)

    def images() -> UInt8[np.ndarray, "count 28 28"]:
        from torchvision.transforms.v2 import functional as transforms

        # 8 x 8 becomes 20 x 20 in a frame of 28 x 28, like MNIST: a rotation cuts nothing off.
        small = torch.as_tensor(_scikit_digits().images)[:, None] * (255 / 16)
        framed = transforms.pad(transforms.resize(small, [20, 20]), [4])
        return framed.round().to(torch.uint8)[:, 0].numpy()

    return RotatedDigits("rotated-digits", Digits(labels, images), protocol="paper", seed=seed)


def open_rotated_mnist(root: Path, *, protocol: str | None = None, seed: int) -> Dataset:
    """MNIST at six angles; protocols paper (the same 1,000 digits), paper-clockwise, domainbed.

    Its files are looked for in the data folder, and downloaded into it where they are missing.
    """
    protocol = protocol or "paper"
    require_known("protocol of rotated-mnist", protocol, PROTOCOLS)
    sets = ("train", "t10k") if protocol == "domainbed" else ("train",)

    def labels() -> UInt8[np.ndarray, "count"]:
        contents = [_mnist_file(root, f"{part}-labels-idx1-ubyte") for part in sets]
        return np.concatenate([np.frombuffer(content, np.uint8, offset=8) for content in contents])

    def images() -> UInt8[np.ndarray, "count 28 28"]:
        contents = [_mnist_file(root, f"{part}-images-idx3-ubyte") for part in sets]
        pixels = [np.frombuffer(content, np.uint8, offset=16) for content in contents]
        return np.concatenate(pixels).reshape(-1, _SIDE, _SIDE)

    return RotatedDigits("rotated-mnist", Digits(labels, images), protocol=protocol, seed=seed)


def _scikit_digits() -> Any:
    require_installed("sklearn.datasets", "rotated-digits needs scikit-learn", package="scikit-learn")
    from sklearn.datasets import load_digits

    return load_digits()


def _mnist_file(data_root: Path, name: str) -> bytes:
    """The unpacked content of one of MNIST's four files."""
    folders = (data_root / "mnist", data_root / "MNIST" / "raw", data_root / "MNIST", data_root)
    for path in (folder / f"{name}{ending}" for folder in folders for ending in ("", ".gz")):
        if path.is_file():
            return _genuine_content(path, name, path.stat().st_mtime_ns)
    return _download(data_root / "mnist", name)


@functools.lru_cache(maxsize=4)
def _genuine_content(path: Path, name: str, changed: int) -> bytes:
    """The content of the file, unpacked and checked once for all runs of a grid; `changed` tells a new file."""
    try:
        content = _unpacked(untrusted.read(path, _MOST_BYTES))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); delete it and start again") from error
    if not _is_genuine(content, name):
        raise UserError(f"{path} is damaged: its checksum is not MNIST's; delete it and start again")
    return content


def _download(folder: Path, name: str) -> bytes:
    from torchvision.datasets import MNIST

    for mirror in MNIST.mirrors:
        try:
            # The addresses are torchvision's, and the checksum decides what is believed.
            with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=_SECONDS) as answer:  # noqa: S310
                packed = answer.read()
        except (OSError, HTTPException):
            continue
        content = _unpacked(packed)
        if _is_genuine(content, name):
            _keep(folder / f"{name}.gz", packed)
            return content
    names = ", ".join(f"{known}.gz" for known in _MD5_UNPACKED)
    raise UserError(f"MNIST could not be downloaded; put its four files {names} into {folder}")


def _keep(path: Path, packed: bytes) -> None:
    try:
        atomic.write_bytes(path, packed)
    except UserError as error:
        reason = getattr(error.__cause__, "strerror", error)
        raise UserError(
            f"cannot write {path} ({reason}); choose another folder by --data DIR or METAVIB_DATA"
        ) from error


def _unpacked(data: bytes) -> bytes:
    """The content of a gz file; empty where it is damaged, which the checksum then finds."""
    try:
        packed = data.startswith(b"\x1f\x8b")
        return zlib.decompressobj(wbits=31).decompress(data, _MOST_BYTES) if packed else data
    except zlib.error:
        return b""


def _is_genuine(content: bytes, name: str) -> bool:
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == _MD5_UNPACKED[name]
