"""A place to break things in: images, a finished run, one that was interrupted, and what must not be touched."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

QUICK = ["--seed", "1", "--steps", "3", "--backbone", "digits", "--weights", "none"]
for _setting in ("images_per_domain=8", "latent_draws=2", "classifier_draws=2", "latent_width=16"):
    QUICK += ["--set", _setting]
QUICK += ["--set", "repeats=2", "--set", "validations=2"]

DOMAINS, CLASSES = ("art", "photo", "sketch"), ("cat", "dog")
FORMATS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "tif": "TIFF"}


@dataclass(frozen=True)
class Place:
    """Where everything is. All of it but `outside` may be written to."""

    root: Path

    @property
    def images(self) -> Path:
        """A folder of domains."""
        return self.root / "images"

    @property
    def finished(self) -> Path:
        """A finished run."""
        return self.root / "finished"

    @property
    def interrupted(self) -> Path:
        """A run with checkpoints of its first two steps of three."""
        return self.root / "interrupted"

    @property
    def outside(self) -> Path:
        """What nobody may touch."""
        return self.root / "outside"

    @property
    def marker(self) -> Path:
        """What a bomb leaves when it goes off."""
        return self.outside / "bomb"

    def fresh(self, name: str = "work") -> Path:
        """An empty folder."""
        folder = self.root / name
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        folder.mkdir()
        return folder

    def training(self, data: Any = None) -> list[str]:
        """The arguments of a short run, but for where it goes."""
        return ["train", str(data or self.images), "--target", "sketch", *QUICK]


@contextlib.contextmanager
def made_place() -> Iterator[Place]:
    """A place of its own, with the working folder, home, cache and temporary files of this process in it."""
    with tempfile.TemporaryDirectory(prefix="metavib-fuzz-") as name:
        place = Place(Path(name).resolve())
        for folder in ("cwd", "home", "tmp", "outside", "cache"):
            (place.root / folder).mkdir()
        (place.outside / "thesis.tex").write_text("mine")
        former, here = dict(os.environ), Path.cwd()
        os.environ |= {
            "HOME": str(place.root / "home"),
            "TMPDIR": str(place.root / "tmp"),
            "METAVIB_CACHE": str(place.root / "cache"),
            "MPLCONFIGDIR": str(place.root / "home"),
            "TORCH_HOME": str(place.root / "home"),
        }
        tempfile.tempdir = None  # it is looked for again
        os.chdir(place.root / "cwd")
        try:
            _fill(place)
            yield place
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(former)
            tempfile.tempdir = None


@contextlib.contextmanager
def stopped_at_once(after: int = 1) -> Iterator[None]:
    """Training stops after its first step, as by Ctrl-C; nothing is served."""
    from metavib.core.errors import UserError
    from metavib.interfaces.cli.training import stopping
    from metavib.serving.http import listening

    @contextlib.contextmanager
    def stop_requested() -> Iterator[Callable[[], bool]]:
        steps = iter(range(after - 1))
        yield lambda: next(steps, None) is None

    def not_here(*_: object, **__: object) -> None:
        raise UserError("not while it is fuzzed.")

    places: list[tuple[Any, str, Any]] = [
        (stopping, "stop_requested", stop_requested),
        (listening, "listen", not_here),
    ]
    former = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in former:
            setattr(module, name, value)


def picture(random: np.random.Generator, position: int = 0) -> Image.Image:
    """A small image in which the class can be seen."""
    pixels = random.integers(0, 120, (20, 20, 3), dtype=np.uint8)
    pixels[:, 10 * position :][:, :10] += 120
    return Image.fromarray(pixels)


def _fill(place: Place) -> None:
    from metavib.interfaces.cli.main import main

    for module in ("sklearn.datasets", "scipy.stats", "matplotlib.pyplot", "jinja2", "ruamel.yaml"):
        with contextlib.suppress(ImportError):  # now: one that is cut off while it is imported stays broken
            importlib.import_module(module)
    random = np.random.default_rng(0)
    for domain in DOMAINS:
        for position, label in enumerate(CLASSES):
            (place.images / domain / label).mkdir(parents=True)
            for number in range(4):
                picture(random, position).save(place.images / domain / label / f"{number}.png")
    pictures = place.root / "pictures"
    pictures.mkdir()
    for suffix, kind in FORMATS.items():
        picture(random).save(pictures / f"good.{suffix}", kind)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        assert main([*place.training(), "--out", str(place.finished)]) == 0
        with stopped_at_once(after=2):
            command = [*place.training(), "--out", str(place.interrupted), "--checkpoint-seconds", "0"]
            assert main(command) == 130
