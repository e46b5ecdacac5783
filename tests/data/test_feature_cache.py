"""Features are computed once, whole or absent, and made again where a file is damaged."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.data import feature_cache
from metavib.data.feature_cache import features
from metavib.data.store.row_file import file_under

COUNT, SIZE = 11, 3
WHOLE = np.arange(COUNT * SIZE, dtype=np.float32).reshape(COUNT, SIZE)


class Computed:
    """Computes features, and remembers of which images."""

    def __init__(self, most: int = 10**6) -> None:
        self.asked: list[tuple[int, int]] = []
        self.told, self.most = 0, most

    def __call__(self, start: int, end: int) -> np.ndarray:
        if len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append((start, end))
        return WHOLE[start:end]

    def tell(self, images: int) -> None:
        self.told += images

    def get(self, key: str = "abc") -> np.ndarray:
        return features(key, COUNT, SIZE, self, self.tell)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path))
    monkeypatch.setattr(feature_cache, "PIECE", 4)
    return tmp_path / "features"


def test_features_are_computed_once_and_then_read(folder: Path) -> None:
    first, second = Computed(), Computed()
    for computed in (first, second):
        found = computed.get()
        assert found.shape == (COUNT, SIZE, 1, 1)
        assert np.array_equal(found[:, :, 0, 0], WHOLE)
        assert file_under(found) is not None  # so that what does not fit into memory is read as it is needed
        assert computed.told == COUNT
    assert first.asked == [(0, 4), (4, 8), (8, 11)]
    assert second.asked == []
    assert not list(folder.glob("*.pieces"))


def test_another_key_has_other_features() -> None:
    Computed().get()
    other = Computed()
    other.get("abd")
    assert len(other.asked) == 3


def test_an_interrupted_computation_goes_on_where_it_was(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Computed(most=2).get()
    assert not list(folder.glob("*.bin"))
    rest = Computed()
    assert np.array_equal(rest.get()[:, :, 0, 0], WHOLE)
    assert rest.asked == [(8, 11)]
    assert rest.told == COUNT


def damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "changed":
        content[5] ^= 1
    path.write_bytes(content[:-1] if how == "cut" else content + b"x" if how == "longer" else bytes(content))


@pytest.mark.parametrize("how", ["changed", "cut", "longer"])
def test_damaged_files_are_made_again(folder: Path, how: str) -> None:
    Computed().get()
    damaged(folder / "abc.bin", how)
    again = Computed()
    assert np.array_equal(again.get()[:, :, 0, 0], WHOLE)
    assert len(again.asked) == 3


@pytest.mark.parametrize("how", ["changed", "cut"])
def test_a_damaged_piece_is_made_again(folder: Path, how: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        Computed(most=2).get()
    damaged(folder / "abc.pieces" / "0.bin", how)
    rest = Computed()
    assert np.array_equal(rest.get()[:, :, 0, 0], WHOLE)
    assert rest.asked == [(0, 4), (8, 11)]


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("breaks", [(atomic.os, "fsync"), (feature_cache, "_join")])
def test_a_full_disk_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, breaks: tuple[object, str], folder: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*breaks, full)
        with pytest.raises(UserError, match="disk"):
            Computed().get()
    assert not list(folder.glob("*.bin"))
    assert np.array_equal(Computed().get()[:, :, 0, 0], WHOLE)


def test_a_folder_that_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"feature cache .* cannot be used .* METAVIB_CACHE"):
        Computed().get()


def test_progress_is_told_piece_by_piece() -> None:
    told: list[int] = []
    compute: Callable[[int, int], np.ndarray] = lambda start, end: WHOLE[start:end]  # noqa: E731
    features("abc", COUNT, SIZE, compute, told.append)
    assert told == [4, 4, 3]
