"""Rows read from a file: the same as those of its memory map, and nothing is mapped."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from metavib.core.errors import UserError
from metavib.data.store import row_file
from metavib.data.store.row_file import file_under


def mapped(folder: Path, count: int = 40, name: str = "a.npy") -> np.memmap:
    np.save(folder / name, np.random.default_rng(0).integers(0, 256, (count, 3, 2, 5), dtype=np.uint8))
    return np.load(folder / name, mmap_mode="r")


@hypothesis_settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(0, 39), max_size=60), together=st.sampled_from([1, 3, 512]))
def test_rows_in_any_order_and_twice_are_those_of_the_map(
    rows: list[int], together: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    array = mapped(tmp_path_factory.getbasetemp())
    file, into = file_under(array), np.zeros((len(rows), 3, 2, 5), dtype=np.uint8)
    assert file is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_file, "_TOGETHER", together)
        file.read(np.array(rows, dtype=np.int64), into, np.arange(len(rows)))
    np.testing.assert_array_equal(into, array[rows])


def test_rows_go_where_they_are_wanted_and_nothing_else_is_touched(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "b.bin", dtype=np.float64, mode="w+", shape=(6, 2))
    array[:] = np.arange(12).reshape(6, 2)
    array.flush()
    file, into = file_under(array), np.full((5, 2), -1.0)
    assert file is not None
    file.read(np.array([4, 1]), into, np.array([3, 0]))
    np.testing.assert_array_equal(into, [[2, 3], [-1, -1], [-1, -1], [8, 9], [-1, -1]])


def test_a_call_that_gives_less_than_was_asked_for_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, whole = mapped(tmp_path), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: whole(fd, [buffers[0][:7]], at))
    file, into = file_under(array), np.zeros((40, 3, 2, 5), dtype=np.uint8)
    assert file is not None
    file.read(np.arange(40), into, np.arange(40))
    np.testing.assert_array_equal(into, array)


def test_a_file_that_became_shorter_is_an_error_and_no_crash(tmp_path: Path) -> None:
    array = mapped(tmp_path)
    file, into = file_under(array), np.zeros((1, 3, 2, 5), dtype=np.uint8)
    assert file is not None
    os.truncate(tmp_path / "a.npy", 500)
    with pytest.raises(UserError, match="shorter than it was"):
        file.read(np.array([39]), into, np.array([0]))
    del file
    gc.collect()
    with pytest.raises(UserError, match="shorter than it was"):
        file_under(array)


def test_a_file_is_opened_once_for_all_and_closed_with_the_last(tmp_path: Path) -> None:
    array = mapped(tmp_path)
    first, second = file_under(array), file_under(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert first is not None
    assert first is second
    descriptor = first._descriptor
    os.fstat(descriptor)
    closing = first._close
    del first, second
    gc.collect()
    assert not closing.alive


@pytest.mark.parametrize("part", [np.s_[1:], np.s_[::2], np.s_[:, :1]])
def test_parts_of_maps_and_arrays_in_memory_have_no_file(tmp_path: Path, part: slice) -> None:
    array = mapped(tmp_path)
    assert file_under(array[part]) is None
    assert file_under(np.array(array)) is None


def test_a_system_without_such_reads_uses_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = mapped(tmp_path)
    monkeypatch.delattr(os, "preadv")
    assert file_under(array) is None
