from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from places import DATA
from torchvision.datasets import MNIST

from metavib.core.errors import UserError
from metavib.data.sources import rotated
from metavib.data.sources.rotated import (
    ANGLES,
    Digits,
    RotatedDigits,
    open_rotated_digits,
    open_rotated_mnist,
)
from metavib.data.splits import split_domains

FILES = tuple(rotated._MD5_UNPACKED)
needs_mnist = pytest.mark.skipif(
    not all((DATA / "mnist" / f"{name}.gz").exists() for name in FILES),
    reason=f"no MNIST in {DATA / 'mnist'}",
)


def dots(count_per_class: int = 120) -> Digits:
    """Digits that are one bright dot, right of the centre and above it, of the class's brightness."""
    labels = np.tile(np.arange(10, dtype=np.uint8), count_per_class)
    pixels = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    pixels[:, 5:8, 18:21] = 100 + 10 * labels[:, None, None]
    return Digits(lambda: labels, lambda: pixels)


def test_paper_protocol_has_the_same_hundred_of_each_class_at_every_angle() -> None:
    dataset = open_rotated_digits(seed=3)
    assert dataset.domains == ("0", "15", "30", "45", "60", "75")
    assert dataset.channels == 1
    assert dataset.protocol.startswith("paper: the same 1,000 digits at six angles")
    listing = dataset.listing("0")
    by_part = Counter(zip(listing.parts, listing.classes, strict=True))
    assert by_part == {
        (part, str(digit)): count
        for part, count in (("train and test", 100), ("crossval", 10))
        for digit in range(10)
    }
    assert len(set(listing.names)) == 1100
    assert listing.names[0].startswith("digit-0")
    for angle in ANGLES:
        assert dataset.listing(angle).names == listing.names


def test_the_seed_alone_decides_the_digits() -> None:
    assert open_rotated_digits(seed=3).listing("0") == open_rotated_digits(seed=3).listing("0")
    assert open_rotated_digits(seed=3).listing("0").names != open_rotated_digits(seed=4).listing("0").names


def test_domainbed_deals_every_digit_out_once() -> None:
    dataset = RotatedDigits("dots", dots(), protocol="domainbed", seed=0)
    listings = [dataset.listing(angle) for angle in ANGLES]
    assert [len(listing.names) for listing in listings] == [200] * 6
    names = [name for listing in listings for name in listing.names]
    assert sorted(names) == [f"digit-{index:05}" for index in range(1200)]
    assert names != sorted(names)
    assert dataset.protocol.startswith("domainbed: ")
    for listing in listings:
        assert listing.classes == tuple(str(int(name[-5:]) % 10) for name in listing.names)


def test_a_positive_angle_turns_counter_clockwise_by_that_much() -> None:
    dataset = RotatedDigits("dots", dots(), protocol="paper", seed=0)
    upright, turned = (dataset.images(angle, 28).pixels[0, 0].astype(float) for angle in ("0", "75"))

    def bearing(image: np.ndarray) -> float:
        """Degrees counter-clockwise from the right, of the dot seen from the centre."""
        rows, columns = np.indices(image.shape)
        row, column = ((image * index).sum() / image.sum() - 13.5 for index in (rows, columns))
        return float(np.degrees(np.arctan2(-row, column)))

    assert bearing(turned) - bearing(upright) == pytest.approx(75, abs=1)
    clockwise = RotatedDigits("dots", dots(), protocol="paper-clockwise", seed=0).images("30", 28)
    assert bearing(upright) - bearing(clockwise.pixels[0, 0].astype(float)) == pytest.approx(30, abs=1)


def test_training_and_testing_see_all_thousand_digits_and_validation_sees_others() -> None:
    split = split_domains(open_rotated_digits(seed=0), "0", seed=0, validation_share=0.1)
    listing = open_rotated_digits(seed=0).listing("15")
    assert len(split.tested) == 1000
    for domain in ANGLES[1:]:
        assert split.train[domain] == split.tested
        assert len(split.validation[domain]) == 100
        names = {listing.names[position] for position in split.validation[domain]}
        assert names.isdisjoint(listing.names[position] for position in split.tested)


def test_no_rotation_is_exact_and_images_follow_the_listing() -> None:
    source = dots()
    dataset = RotatedDigits("dots", source, protocol="paper", seed=0)
    found = dataset.images("0", 28)
    members = [int(name[-5:]) for name in dataset.listing("0").names]
    np.testing.assert_array_equal(found.pixels[:, 0], source.images()[members])
    assert found.pixels.dtype == np.uint8
    assert found.kept == tuple(range(1100))
    assert found.skipped == ()
    assert len(set(found.digests)) == 10  # the dots of a class are the same


def test_other_sizes_and_progress() -> None:
    calls = []
    dataset = RotatedDigits("dots", dots(), protocol="paper", seed=0)
    large = dataset.images("15", 32, progress=lambda done, total: calls.append((done, total)))
    assert large.pixels.shape == (1100, 1, 32, 32)
    assert large.digests == dataset.images("15", 28).digests  # the digit is the same one
    assert calls == [(1100, 1100)]


def test_a_listing_opens_no_images() -> None:
    def fail() -> np.ndarray:
        raise AssertionError("a listing opened images")

    dataset = RotatedDigits("dots", Digits(dots().labels, fail), protocol="paper", seed=0)
    assert len(dataset.listing("0").names) == 1100
    with pytest.raises(AssertionError, match=r"a listing opened images"):
        dataset.images("0", 28)


def test_rotation_cuts_nothing_off_the_embedded_digits() -> None:
    dataset = open_rotated_digits(seed=0)
    ink = [dataset.images(angle, 28).pixels.astype(float).sum() for angle in ANGLES]
    assert max(ink) / min(ink) < 1.01


def test_unknown_angle() -> None:
    with pytest.raises(UserError, match=r"unknown domain '46'"):
        open_rotated_digits(seed=0).listing("46")


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r"pip install scikit-learn"):
        open_rotated_digits(seed=0).listing("0")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [(tmp_path / "no-mirror").as_uri() + "/"])


@pytest.mark.usefixtures("no_network")
def test_without_mnist_the_error_names_the_files_and_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        open_rotated_mnist(tmp_path, protocol="paper", seed=0).listing("0")
    for name in FILES:
        assert f"{name}.gz" in str(raised.value)
    assert f"into {tmp_path / 'mnist'}" in str(raised.value)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "content", [b"no labels", b"\x1f\x8bno gzip", gzip.compress(bytes(60_008), mtime=0), b""]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz is damaged"):
        open_rotated_mnist(tmp_path, protocol="paper", seed=0).listing("0")


def test_a_mirror_that_serves_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"please log in"))
    monkeypatch.setattr(MNIST, "mirrors", [mirror.as_uri() + "/"])
    with pytest.raises(UserError, match=r"could not be downloaded"):
        open_rotated_mnist(tmp_path / "data", protocol="paper", seed=0).listing("0")
    assert not (tmp_path / "data").exists()


@needs_mnist
def test_mnist_is_downloaded_from_the_second_mirror_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [tmp_path.as_uri() + "/", (DATA / "mnist").as_uri() + "/"])
    listing = open_rotated_mnist(tmp_path / "data", protocol="paper", seed=0).listing("0")
    assert [path.name for path in (tmp_path / "data/mnist").iterdir()] == ["train-labels-idx1-ubyte.gz"]
    monkeypatch.setattr(MNIST, "mirrors", [])
    assert open_rotated_mnist(tmp_path / "data", protocol="paper", seed=0).listing("0") == listing


@needs_mnist
def test_a_data_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [(DATA / "mnist").as_uri() + "/"])
    (tmp_path / "data").write_text("a file is in the way")
    with pytest.raises(
        UserError, match=r"cannot write .*choose another folder by --data DIR or METAVIB_DATA"
    ):
        open_rotated_mnist(tmp_path / "data", protocol="paper", seed=0).listing("0")


@needs_mnist
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "MNIST", "."])
def test_mnist_is_found_unpacked_too(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    packed = (DATA / "mnist/train-labels-idx1-ubyte.gz").read_bytes()
    (tmp_path / folder / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(packed))
    assert len(open_rotated_mnist(tmp_path, protocol="paper", seed=0).listing("75").names) == 1100


@needs_mnist
def test_real_mnist_in_both_protocols() -> None:
    paper = open_rotated_mnist(DATA, protocol="paper", seed=0)
    assert Counter(paper.listing("30").classes) == {str(digit): 110 for digit in range(10)}
    upright = torch.from_numpy(paper.images("0", 28).pixels).float()
    assert upright.mean() / 255 == pytest.approx(0.1307, abs=0.01)  # the mean of MNIST
    assert len(set(paper.images("30", 28).digests)) == 1100
    dealt = open_rotated_mnist(DATA, protocol="domainbed", seed=0)
    assert [len(dealt.listing(angle).names) for angle in ANGLES] == [11_667] * 4 + [11_666] * 2
    assert len({name for angle in ANGLES for name in dealt.listing(angle).names}) == 70_000
    assert dealt.images("75", 28).pixels.shape == (11_666, 1, 28, 28)
