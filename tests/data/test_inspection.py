from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from metavib.data.dataset import Dataset
from metavib.data.inspection import FEW_IMAGES, Report, inspect
from metavib.data.sources.folder import open_folder
from metavib.data.sources.rotated import open_rotated_digits


def _note(text: str) -> PngImagePlugin.PngInfo:
    note = PngImagePlugin.PngInfo()
    note.add_text("Title", text)
    return note


def paint(root: Path, domain: str, label: str, count: int = FEW_IMAGES) -> None:
    """Images that all differ, also from those of other classes and domains."""
    folder = root / domain / label
    folder.mkdir(parents=True)
    for number in range(count):
        image = Image.new("L", (16, 8), number)
        image.save(folder / f"{number:02}.png", pnginfo=_note(f"{domain} {label}"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    for domain in ("one", "two", "three"):
        paint(tmp_path / "root", domain, "cat")
        paint(tmp_path / "root", domain, "dog", 60)
    return tmp_path / "root"


def texts(report: Report) -> list[str]:
    return [f"{problem.severity}: {problem.text}" for problem in report.problems]


def test_a_good_dataset_has_no_problem_and_leaves_the_cache_alone(root: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = inspect(open_folder(root), progress=lambda done, total: calls.append((done, total)))
    assert texts(report) == []
    assert report.can_train
    assert report.counts == {domain: {"cat": 50, "dog": 60} for domain in ("one", "three", "two")}
    assert report.sizes is not None
    assert report.sizes.width == (16, 16, 16)
    assert report.sizes.height == (8, 8, 8)
    assert report.modes == {"L": 330}
    assert calls[-1] == (330, 330)
    assert len(calls) == 330
    assert not (root.parent / "cache").exists()


def test_sizes_and_modes(root: Path) -> None:
    Image.new("RGB", (300, 200)).save(root / "one/cat/wide.png")
    Image.new("RGBA", (4, 500)).save(root / "one/cat/high.png")
    report = inspect(open_folder(root))
    assert report.sizes is not None
    assert report.sizes.width == (4, 16, 300)
    assert report.sizes.height == (8, 8, 500)
    assert report.modes == {"L": 330, "RGB": 1, "RGBA": 1}


def test_bad_files_are_errors_by_name(root: Path) -> None:
    (root / "one/cat/00.png").write_bytes(b"")
    (root / "one/cat/01.png").write_bytes(b"some text")
    whole = (root / "two/dog/02.png").read_bytes()
    (root / "two/dog/02.png").write_bytes(whole[:-30])
    report = inspect(open_folder(root))
    assert not report.can_train
    assert texts(report)[0] == "error: one/cat/00.png: is empty"
    assert texts(report)[1].startswith("error: one/cat/01.png: is not a JPEG")
    assert texts(report)[2].startswith("error: two/dog/02.png: is damaged or truncated")
    assert len(report.problems) == 3


def test_identical_images_are_told_apart_by_where_they_are(root: Path) -> None:
    image = (root / "one/cat/00.png").read_bytes()
    (root / "one/cat/same.png").write_bytes(image)
    other = (root / "one/cat/01.png").read_bytes()
    (root / "one/dog/same.png").write_bytes(other)
    third = (root / "one/cat/02.png").read_bytes()
    (root / "two/cat/same.png").write_bytes(third)
    report = inspect(open_folder(root))
    assert texts(report) == [
        "warning: identical images across domains, within a class: one/cat/02.png = two/cat/same.png",
        "warning: identical images within a domain, in different classes: one/cat/01.png = one/dog/same.png",
        "warning: identical images within a domain, within a class: one/cat/00.png = one/cat/same.png",
    ]
    assert report.can_train


def test_missing_classes_few_images_and_other_files_are_warnings(root: Path) -> None:
    paint(root, "one", "emu", 1)
    paint(root, "tiny", "cat", 2)
    (root / "one/cat/notes.txt").write_text("no image")
    report = inspect(open_folder(root))
    assert texts(report) == [
        "warning: class 'dog' is missing from tiny",
        "warning: class 'emu' is missing from three, tiny, two; one cannot be the target, and what is learnt of "
        "the class comes from there alone",
        "warning: domain 'tiny' has only 2 images: results on it will be rough",
        "warning: classes of fewer than 10 images in a domain are too small to measure there: 'emu' in one has 1, "
        "'cat' in tiny has 2",
        "warning: 1 file(s) that are not images: one/cat/notes.txt",
    ]
    assert report.can_train


def test_a_class_of_two_domains_is_learnt_from_one_where_the_other_is_the_target(root: Path) -> None:
    paint(root, "one", "emu", 60)
    paint(root, "two", "emu", 60)
    assert texts(inspect(open_folder(root))) == [
        "warning: class 'emu' is missing from three; with one or two as target, it is learnt from the other one "
        "alone"
    ]


def open_domains(root: Path, classes: dict[str, str]) -> Dataset:
    for domain, label in classes.items():
        paint(root, domain, label)
    return open_folder(root)


def test_one_or_two_domains_can_only_be_trained_on_as_a_whole(tmp_path: Path) -> None:
    report = inspect(open_domains(tmp_path, {"one": "cat", "two": "cat"}))
    assert texts(report)[0].startswith("warning: only 2 domain(s)")
    assert "--target none" in texts(report)[0]
    assert report.can_train


def test_domains_without_a_common_class_can_only_be_trained_on_as_a_whole(tmp_path: Path) -> None:
    report = inspect(open_domains(tmp_path, {"one": "cat", "two": "dog", "three": "emu"}))
    assert texts(report)[0].startswith("warning: every domain has a class that no other has")
    assert "--target none" in texts(report)[0]
    assert report.can_train


def test_nothing_readable(tmp_path: Path) -> None:
    for domain in ("one", "two", "three"):
        (tmp_path / domain / "cat").mkdir(parents=True)
        (tmp_path / domain / "cat/1.png").write_bytes(b"")
    report = inspect(open_folder(tmp_path))
    assert report.sizes is None
    assert report.modes == {}
    assert not report.can_train


def test_generated_digits_are_looked_at_too() -> None:
    report = inspect(open_rotated_digits(seed=0), size=28)
    assert report.counts["45"] == {str(digit): 110 for digit in range(10)}
    assert report.modes == {"L": 6600}
    assert report.can_train


def test_json(root: Path) -> None:
    (root / "one/cat/00.png").write_bytes(b"")
    report = json.loads(json.dumps(inspect(open_folder(root)).to_json()))
    assert report["can_train"] is False
    assert report["problems"] == [{"severity": "error", "text": "one/cat/00.png: is empty"}]
    assert report["counts"]["one"] == {"cat": 50, "dog": 60}
    assert report["sizes"] == {"width": [16, 16, 16], "height": [8, 8, 8]}
    assert report["modes"] == {"L": 329}
