from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from metavib.core.errors import UserError
from metavib.data.store import storage
from metavib.data.store.storage import ImageStore, LastStore, free_memory, store_of_all
from metavib.data.transforms import Preprocessing

CPU = torch.device("cpu")


@pytest.fixture
def parts(tmp_path: Path) -> list[np.ndarray]:
    """Memory maps of 3, 2 and 3 images that can only be read, as the cache has them."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 2, 2), dtype=np.uint8)
    maps = []
    for name, part in zip("abc", np.split(pixels, [3, 5]), strict=True):
        np.save(tmp_path / f"{name}.npy", part)
        maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    return maps


@pytest.mark.parametrize("resident", [True, False])
def test_images_are_gathered_over_all_parts_in_the_order_asked_for(
    parts: list[np.ndarray], resident: bool
) -> None:
    store = ImageStore(parts, CPU, resident=resident)
    assert store.resident == resident
    assert len(store) == 8
    everything = np.concatenate(parts)
    for rows in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 3, 3, 0, 4, 2], [5], []):
        gathered = store.gather(torch.tensor(rows, dtype=torch.int64))
        assert gathered.dtype == torch.uint8
        assert torch.equal(gathered, torch.from_numpy(everything[rows]))


@pytest.mark.parametrize(("free", "resident"), [(64, True), (63, False)])
def test_images_are_resident_where_they_take_half_of_the_free_memory_at_most(
    parts: list[np.ndarray], free: int, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_memory", lambda device: free)
    assert ImageStore(parts, CPU).resident == resident  # 8 images of 4 bytes


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux says how much there is")
def test_free_memory_is_less_than_all_there_is() -> None:
    all_there_is = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < free_memory(CPU) <= all_there_is


@pytest.mark.parametrize("resident", [True, False])
def test_batches_come_in_order_and_preprocessed(parts: list[np.ndarray], resident: bool) -> None:
    preprocessing = Preprocessing(2, 1, (0.5,), (0.25,))
    rows, labels = torch.tensor([6, 0, 3, 5, 1]), torch.tensor([2, 0, 1, 2, 0])
    store = ImageStore(parts, CPU, resident=resident)
    batches = list(store.batches(rows, labels, preprocessing, size=2))
    assert [len(batch.labels) for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.labels for batch in batches]), labels)
    torch.testing.assert_close(
        torch.cat([batch.images for batch in batches]), (store.gather(rows) / 255 - 0.5) / 0.25
    )


@pytest.mark.parametrize(("channels", "side", "expected"), [(1, 28, 256), (3, 224, 55), (3, 1024, 16)])
def test_fewer_large_images_pass_through_a_network_at_a_time(channels: int, side: int, expected: int) -> None:
    pixels = np.zeros((300, channels, 1, 1), dtype=np.uint8)
    store = ImageStore([np.broadcast_to(pixels, (300, channels, side, side))], CPU, resident=False)
    preprocessing = Preprocessing(1, channels, (0.0,), (1.0,))
    rows = torch.arange(expected + 1)
    sizes = [len(batch.labels) for batch in store.batches(rows, rows, preprocessing, None)]
    assert sizes == [expected, 1]


def test_images_go_to_the_device_when_they_are_first_needed(parts: list[np.ndarray]) -> None:
    writable = [part.copy() for part in parts]
    store = ImageStore(writable, CPU, resident=True)
    writable[0][:] = 7
    assert torch.equal(
        store.gather(torch.tensor([0, 4])), torch.from_numpy(np.stack([writable[0][0], parts[1][1]]))
    )
    assert store.tensor is store.tensor


def test_images_are_read_into_memory_that_is_there(parts: list[np.ndarray]) -> None:
    store, rows = ImageStore(parts, CPU, resident=False), torch.tensor([7, 0, 4])
    place = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    assert store.gather_on_host(rows, place) is place
    assert torch.equal(place, store.gather(rows))


def test_joined_stores_hold_each_image_once_and_say_where_everyones_are(parts: list[np.ndarray]) -> None:
    first, second, third = parts
    stores = [ImageStore(own, CPU) for own in ([first, second], [third, first], [second])]
    together, places = store_of_all(stores)
    assert len(together) == 8
    assert [part is own for part, own in zip(together.parts, parts, strict=True)] == [True] * 3
    for store, place in zip(stores, places, strict=True):
        own = store.gather(torch.arange(len(store)))
        assert torch.equal(together.gather(torch.from_numpy(place)), own)


def test_images_that_are_equal_but_not_the_same_array_are_both_kept(parts: list[np.ndarray]) -> None:
    together, places = store_of_all([ImageStore([parts[0]], CPU), ImageStore([parts[0].copy()], CPU)])
    assert len(together) == 6
    assert [place.tolist() for place in places] == [[0, 1, 2], [3, 4, 5]]


def test_a_resident_store_is_a_copy(parts: list[np.ndarray]) -> None:
    writable = [part.copy() for part in parts]
    store = ImageStore(writable, CPU, resident=True)
    before = store.gather(torch.arange(8))
    for part in writable:
        part[:] = 0
    assert torch.equal(store.gather(torch.arange(8)), before)


# --- images that runs share --------------------------------------------------------------------------------


def test_a_shelf_hands_out_the_last_store_for_the_same_files_and_a_new_one_for_others(
    parts: list[np.ndarray],
) -> None:
    shelf = LastStore()
    store = shelf.store(parts[:2], CPU, 3)
    opened_again = [np.load(str(part.filename), mmap_mode="r") for part in parts[:2]]  # type: ignore[attr-defined]
    assert shelf.store(opened_again, CPU, 3) is store
    for others, channels in ((parts[:2], 1), (parts[1::-1], 3), (parts, 3), (parts[:1], 3)):
        new = shelf.store(others, CPU, channels)
        assert new is not store
        assert (len(new), new.shape[0]) == (sum(map(len, others)), channels)
    assert shelf.store(parts[:2], CPU, 3) is not store  # only the last one is kept


def test_a_shelf_tells_arrays_apart_that_are_no_files(parts: list[np.ndarray]) -> None:
    shelf, arrays = LastStore(), [np.asarray(part).copy() for part in parts[:2]]
    store = shelf.store(arrays, CPU, 1)
    assert shelf.store(arrays, CPU, 1) is store
    assert shelf.store([array.copy() for array in arrays], CPU, 1) is not store


# --- images that do not fit -------------------------------------------------------------------------------


def test_the_next_store_sees_what_the_last_one_took(
    parts: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[ImageStore] = []
    monkeypatch.setattr(storage, "free_memory", lambda device: 70 - sum(store.nbytes for store in taken))
    stores = [ImageStore(parts, CPU) for _ in range(3)]  # 32 bytes each
    found = []
    for store in stores:
        found.append(store.resident)
        taken += [store] if store.resident else []
    assert found == [True, False, False]


def test_what_is_to_stay_in_files_stays_there(parts: list[np.ndarray]) -> None:
    store = ImageStore(parts, CPU)
    store.stay_in_files()
    assert not store.resident


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stored", [1, 3])
@pytest.mark.parametrize("in_files", [True, False])
def test_grey_and_colour_are_the_same_in_memory_in_files_and_in_any_batch(
    tmp_path: Path, channels: int, stored: int, in_files: bool
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (40, stored, 9, 9), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    part = np.load(tmp_path / "a.npy", mmap_mode="r") if in_files else pixels
    whole = ImageStore([part], CPU, channels=channels, resident=True)
    streamed = ImageStore([part], CPU, channels=channels, resident=False)
    assert whole.tensor.shape == (40, channels, 9, 9)
    assert whole.nbytes == whole.tensor.nbytes
    for size in (1, 3, 40):
        rows = torch.arange(39, -1, -1)
        pieces = [streamed.gather(some) for some in rows.split(size)]
        assert torch.equal(torch.cat(pieces), whole.gather(rows))


def test_all_images_are_read_in_pieces(parts: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    gather = ImageStore.gather_on_host
    monkeypatch.setattr(storage, "READ_AT_ONCE", 12)  # three images
    monkeypatch.setattr(
        ImageStore,
        "gather_on_host",
        lambda own, rows, into: asked.append(len(rows)) or gather(own, rows, into),
    )
    store = ImageStore(parts, CPU, resident=True)
    assert torch.equal(store.tensor, torch.from_numpy(np.concatenate(parts)))
    assert asked == [3, 3, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_batches_that_were_read_stay_as_they_are_while_others_come(tmp_path: Path, dtype: type) -> None:
    np.save(tmp_path / "a.npy", np.arange(36, dtype=dtype).reshape(9, 1, 2, 2))
    part = np.load(tmp_path / "a.npy", mmap_mode="r")
    preprocessing, rows = Preprocessing(2, 1, (0.0,), (1.0,)), torch.tensor([8, 1, 4, 4, 0, 7, 2])
    found = []
    for resident in (True, False):
        store = ImageStore([part], CPU, resident=resident)
        batches = list(store.batches(rows, rows, preprocessing, size=2))  # all of them are kept
        found.append(torch.cat([batch.images for batch in batches]))
    assert torch.equal(*found)


def test_reading_ends_with_whoever_reads(parts: list[np.ndarray]) -> None:
    store, rows = ImageStore(parts, CPU, resident=False), torch.arange(8)
    batches = store.batches(rows, rows, Preprocessing(2, 1, (0.0,), (1.0,)), size=1)
    next(batches)
    batches.close()  # its thread ends too
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metavib-images")]


def test_an_unreadable_file_is_an_error_where_its_images_are_needed(parts: list[np.ndarray]) -> None:
    store, rows = ImageStore(parts, CPU, resident=False), torch.arange(8)
    batches = store.batches(rows, rows, Preprocessing(2, 1, (0.0,), (1.0,)), size=1)
    next(batches)
    Path(parts[2].filename).write_bytes(b"")
    with pytest.raises(UserError, match="shorter than it was"):
        list(batches)
