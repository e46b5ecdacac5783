"""The range is that of the source domains' files, found once; 8-bit folders do not pay for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deep_files import RAMP, in_colour, png, saved, tiff

from metavib.core.errors import UserError
from metavib.data.cache import cache_root
from metavib.data.decoding import images
from metavib.data.decoding.pixel_range import BYTES, OLDER, PixelRange
from metavib.data.file_dataset import File, FileDataset
from metavib.data.inspection import inspect
from metavib.data.opening import open_sources, open_target
from metavib.data.sources.folder import open_folder
from metavib.data.splits import split_domains
from metavib.data.transforms import Preprocessing

CPU = torch.device("cpu")
GREY = Preprocessing(64, 1, (0.0,), (1.0,))
TWELVE_BITS = PixelRange("16-bit", 0.0, 4095.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Domains a, b and c of 12-bit ramps in 16-bit files, two classes each."""
    for domain in "abc":
        for number, label in enumerate(("cat", "dog", "cat", "dog")):
            put(tmp_path / "root" / domain / label / f"{number}.png", png(np.roll(RAMP, number)))
    return tmp_path / "root"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The files that are read, scanned and decoded from here on."""
    calls: dict[str, list[str]] = {"image_bytes": [], "scan": [], "decode_within": [], "depth": []}
    for name, own in calls.items():
        monkeypatch.setattr(images, name, recorded(getattr(images, name), own))
    return calls


def recorded(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The function, which notes the file that it is called for."""

    def call(data: object, file: str, *rest: object) -> Any:
        calls.append(file)
        return function(data, file, *rest)

    return call


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def open_both(root: Path, target: str = "c", skip_bad: bool = False):
    dataset = open_folder(root)
    split = split_domains(dataset, target, seed=0, validation_share=0.5)
    sources = open_sources(dataset, split, GREY, CPU, skip_bad=skip_bad)
    return sources, lambda: open_target(
        dataset.read_by(sources.pixel_range), split, GREY, CPU, sources.digests, skip_bad=skip_bad
    )


def levels(store) -> list[int]:
    pixels = store.gather(torch.arange(len(store)))
    return [len(torch.unique(image)) for image in pixels]


def test_sources_of_12_bits_keep_256_levels_and_the_range_is_recorded(root: Path) -> None:
    sources, _ = open_both(root)
    assert sources.pixel_range == TWELVE_BITS
    assert sources.record["pixel_range"] == {"depth": "16-bit", "low": 0.0, "high": 4095.0}
    assert levels(sources.train.store) == [256] * 8


def test_the_target_stays_closed_and_its_values_beyond_the_range_are_clipped_and_counted(
    root: Path, opened: dict[str, list[str]]
) -> None:
    put(root / "c/cat/0.png", png(RAMP + 4096))
    put(root / "c/dog/1.png", png(RAMP + 1))
    sources, rest = open_both(root)
    assert sources.pixel_range == TWELVE_BITS
    assert {name[0] for names in opened.values() for name in names} == {"a", "b"}
    target, record = rest()
    assert record["clipped_images"] == 2
    assert rest()[1] == record  # from the cache, too
    assert sorted(levels(target.store))[0] == 1  # all white


def test_the_range_is_that_of_the_domains_trained_on(root: Path) -> None:
    put(root / "c/cat/0.png", png(RAMP * 16))
    assert open_both(root, target="c")[0].pixel_range.high == 4095
    sources, _ = open_both(root, target="b")
    assert sources.pixel_range.high == 65535
    assert (
        levels(sources.train.store)[0] == 17
    )  # what is scaled by another range is another entry of the cache
    assert levels(open_both(root, target="c")[0].train.store)[0] == 256


def test_a_deep_folder_is_scanned_once(root: Path, opened: dict[str, list[str]]) -> None:
    open_both(root)
    assert len(opened["scan"]) == 8
    assert len(opened["decode_within"]) == 8
    opened["image_bytes"].clear()
    open_both(root)
    assert len(opened["scan"]) == 8
    assert len(opened["decode_within"]) == 8
    assert len(opened["image_bytes"]) == 1  # whether it is deep at all
    open_both(root, target="a")
    assert len(opened["scan"]) == 12
    put(root / "a/cat/0.png", png(RAMP * 2))
    assert open_both(root)[0].pixel_range.high == 8191
    assert len(opened["scan"]) == 16


def test_what_metavib_data_has_found_is_not_looked_for_again(
    root: Path, opened: dict[str, list[str]]
) -> None:
    report = inspect(open_folder(root))
    assert report.pixel_range == TWELVE_BITS
    assert report.extremes == (0, 4095)
    assert len(opened["scan"]) == 12
    assert opened["decode_within"] == []  # the pixels were looked at already
    open_both(root)
    assert len(opened["scan"]) == 12


def test_a_damaged_finding_is_found_again(root: Path, opened: dict[str, list[str]]) -> None:
    open_both(root)
    for path in (cache_root() / "images").glob("*.values"):
        path.write_text('{"16-bit": 3}')
    assert open_both(root)[0].pixel_range == TWELVE_BITS
    assert len(opened["scan"]) == 16


def test_an_8_bit_folder_pays_one_header(tmp_path: Path, opened: dict[str, list[str]]) -> None:
    for domain in "abc":
        for number, label in enumerate(("cat", "dog", "cat", "dog")):
            put(
                tmp_path / "root" / domain / label / f"{number}.png", saved(np.full((9, 9), number, np.uint8))
            )
    sources, _ = open_both(tmp_path / "root")
    assert sources.pixel_range == BYTES
    assert opened["scan"] == []
    assert opened["depth"] == ["a/cat/0.png"]
    assert len(opened["decode_within"]) == 8
    assert list((cache_root() / "images").glob("*.values")) == []


@pytest.mark.parametrize("odd", ["a/cat/0.png", "b/dog/3.png"])
@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("data", [saved(np.zeros((9, 9), np.uint8)), tiff(RAMP.astype(np.float32))])
def test_different_depths_are_refused_with_an_example_of_each(
    root: Path, odd: str, skip_bad: bool, data: bytes
) -> None:
    put(root / odd, data)
    with pytest.raises(UserError) as caught:
        open_both(root, skip_bad=skip_bad)
    text = str(caught.value)
    assert text.startswith("the files have different bit depths: ")
    assert f"{odd} is {'8-bit' if data[1:4] == b'PNG' else 'float'}" in text
    assert "is 16-bit" in text
    assert "\n" not in text


def test_one_deep_file_among_8_bit_ones_is_refused_too(tmp_path: Path) -> None:
    for domain in "abc":
        for label in ("cat", "dog"):
            for number in range(3):
                put(tmp_path / "root" / domain / label / f"{number}.png", saved(np.zeros((9, 9), np.uint8)))
    put(tmp_path / "root/b/dog/1.png", png(in_colour(RAMP)))
    with pytest.raises(UserError, match=r"a/cat/0.png is 8-bit, b/dog/1.png is 16-bit. .*one depth"):
        open_both(tmp_path / "root")
    report = inspect(open_folder(tmp_path / "root"))
    assert not report.can_train
    assert report.pixel_range is None
    assert "a/cat/0.png is 8-bit, b/dog/1.png is 16-bit" in report.problems[0].text


def test_a_target_of_another_depth_is_refused_when_it_is_opened(root: Path) -> None:
    put(root / "c/cat/0.png", saved(np.zeros((9, 9), np.uint8)))
    _, rest = open_both(root)
    with pytest.raises(UserError, match=r"^c/cat/0.png: is 8-bit, but the model takes 16-bit images with"):
        rest()


def test_bad_files_do_not_decide_the_range(root: Path) -> None:
    put(root / "a/cat/0.png", b"no image")
    put(root / "a/dog/1.png", png(RAMP * 16)[:-500])
    with pytest.raises(UserError, match=r"2 image file\(s\) cannot be used: a/cat/0.png.*a/dog/1.png"):
        open_both(root)
    put(root / "a/cat/9.png", png(RAMP))
    put(root / "a/dog/9.png", png(RAMP))
    sources, _ = open_both(root, skip_bad=True)
    assert sources.pixel_range == TWELVE_BITS
    assert len(sources.record["skipped_files"]) == 2


def test_deep_files_that_are_all_damaged_are_named_as_bad(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"4 image file\(s\) cannot be used: a/cat/0.png"):
        open_both(root)


def test_a_source_domain_that_uses_little_of_the_range_is_noted(root: Path) -> None:
    for path in (root / "b").rglob("*.png"):
        path.write_bytes(png(RAMP * 16))
    (note,) = open_both(root)[0].notes
    assert "domain 'a' uses values 0 to 4,095 only" in note
    problems = [problem.text for problem in inspect(open_folder(root)).problems]
    assert note in problems


def test_an_unwritable_cache_costs_a_second_look_and_no_error(
    root: Path, opened: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "file"))
    dataset = open_folder(root)
    for _ in range(2):
        assert dataset.found_range(["a", "b"]).pixel_range == TWELVE_BITS
    assert len(opened["scan"]) == 16


def test_a_dataset_that_is_read_by_a_range_looks_for_none(root: Path, opened: dict[str, list[str]]) -> None:
    dataset = open_folder(root).read_by(OLDER)
    assert dataset.found_range(["a"]).pixel_range == OLDER
    assert len(np.unique(dataset.images("a", 64).pixels[0])) == 17
    assert opened["scan"] == []


def test_a_domain_opened_alone_has_its_own_range(tmp_path: Path) -> None:
    put(tmp_path / "x.tif", tiff(RAMP // 16))
    dataset = FileDataset("mine", tmp_path, {"a": [File("x.tif", "cat", "")]}, protocol="folder")
    assert len(np.unique(dataset.images("a", 64).pixels)) == 256
