"""Arrays as sources: layouts, ranges, sizes, and domains where none are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metavib.core.errors import UserError
from metavib.data.arrays import (
    channels_first,
    features_as_pixels,
    images_as_pixels,
    random_domains,
    sources_of,
)
from metavib.data.decoding.shrinking import squashed
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Augmentation, Preprocessing, prepare

CPU = torch.device("cpu")


@pytest.fixture
def colour() -> np.ndarray:
    """Smooth images, [n, c, h, w]: resampled ones can be compared."""
    row, column = np.mgrid[0:12, 0:16]
    plane = 8 * row + 7 * column
    return np.stack([np.stack([plane, 200 - plane, plane // 2 + image]) for image in range(3)]).astype(
        np.uint8
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 5, 6), (2, 1, 5, 6)),
        ((2, 1, 5, 6), (2, 1, 5, 6)),
        ((2, 3, 5, 6), (2, 3, 5, 6)),
        ((2, 5, 6, 1), (2, 1, 5, 6)),
        ((2, 5, 6, 3), (2, 3, 5, 6)),
        ((2, 3, 3, 3), (2, 3, 3, 3)),
    ],
)
def test_channels_come_second(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = np.arange(np.prod(shape)).reshape(shape)
    found = channels_first(images)
    assert found.shape == expected
    assert set(found[1].ravel()) == set(images[1].ravel())


def test_all_layouts_are_the_same_images(colour: np.ndarray) -> None:
    assert np.array_equal(channels_first(colour.transpose(0, 2, 3, 1)), colour)
    assert np.array_equal(channels_first(colour[:, 0]), colour[:, :1])


@pytest.mark.parametrize("shape", [(4,), (4, 2, 5, 6), (4, 3, 5, 6, 1), (4, 5, 6, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"it takes features \[n, d\], or images"):
        channels_first(np.zeros(shape))


def test_images_are_resized_as_files_are(colour: np.ndarray) -> None:
    from PIL import Image

    found = images_as_pixels(colour, 7, 3)
    assert found.dtype == np.uint8
    for image, pixels in zip(colour, found, strict=True):
        as_a_file = squashed(Image.fromarray(image.transpose(1, 2, 0)), 7)
        assert np.abs(as_a_file.astype(int) - pixels).max() <= 1


def test_bytes_and_floats_are_the_same_image(colour: np.ndarray) -> None:
    as_floats = images_as_pixels(colour / 255, 7, 3)
    assert as_floats.dtype == np.float32
    assert np.abs(as_floats * 255 - images_as_pixels(colour, 7, 3)).max() <= 0.51
    assert np.array_equal(images_as_pixels(colour.astype(np.int64), 7, 3), images_as_pixels(colour, 7, 3))


def test_grey_and_colour_become_each_other(colour: np.ndarray) -> None:
    grey = images_as_pixels(colour, 12, 1)
    assert grey.shape == (3, 1, 12, 12)
    weighted = np.tensordot(images_as_pixels(colour, 12, 3), [0.299, 0.587, 0.114], axes=(1, 0))
    assert np.abs(grey[:, 0] - weighted).max() <= 1.1
    back = images_as_pixels(grey, 12, 3)
    assert np.array_equal(back[:, 2], grey[:, 0])


def test_many_images_pass_in_parts_and_stay_in_order() -> None:
    images = np.repeat(np.arange(600) % 251, 4).reshape(600, 2, 2).astype(np.uint8)
    assert np.array_equal(images_as_pixels(images, 3, 1)[:, 0, 1, 1], np.arange(600) % 251)


@pytest.mark.parametrize("value", [-0.1, 1.5, 16.0])
def test_floats_that_may_mean_anything_are_refused(value: float) -> None:
    with pytest.raises(UserError, match="floats in images take 0 to 1"):
        images_as_pixels(np.full((1, 2, 2), value), 2, 1)


@pytest.mark.parametrize("value", [-1, 256])
def test_whole_numbers_beyond_bytes_are_refused(value: int) -> None:
    with pytest.raises(UserError, match="whole numbers in images take 0 to 255"):
        images_as_pixels(np.full((1, 2, 2), value), 2, 1)


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_random_domains_have_as_many_samples_of_each_class(domains: int) -> None:
    labels = np.array([0] * 30 + [1] * 15 + [2] * 1)
    dealt = random_domains(labels, domains, seed=3)
    assert set(dealt) == set(range(domains))
    for label, count in ((0, 30), (1, 15), (2, 1)):
        of_class = np.bincount(dealt[labels == label], minlength=domains)
        assert of_class.sum() == count
        assert of_class.max() - of_class.min() <= 1
    assert np.array_equal(dealt, random_domains(labels, domains, seed=3))
    assert not np.array_equal(dealt, random_domains(labels, domains, seed=4))


def test_sources_of_features_hold_them_to_the_last_digit() -> None:
    features = np.array([[1e9 + 1, 0.5], [1e9 + 2, 0.25], [1e9 + 3, 0.125], [1e9 + 4, 0.75]])
    labels, domains = np.array([0, 1, 1, 0]), np.array([1, 0, 1, 0])
    preprocessing = Preprocessing(1, 2, (0.0,), (1.0,))
    sources = sources_of(features_as_pixels(features), labels, domains, 2, preprocessing, CPU)
    assert sources.train.counts.tolist() == [[1, 1], [1, 1]]
    assert len(sources.validation) == 0
    (batch,) = sources.train.batches()
    assert batch.images.dtype == torch.float64
    assert np.array_equal(batch.images.flatten(1).numpy(), features[[3, 1, 0, 2]])  # by domain, then class
    assert batch.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(flip=1.0)])
def test_float_images_are_prepared_as_bytes_are(colour: np.ndarray, augmentation: Augmentation) -> None:
    preprocessing = Preprocessing(12, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    pixels = torch.from_numpy(images_as_pixels(colour, 12, 3))
    draws = torch.full((2, 9), 0.5) if augmentation.active else None
    rows = torch.tensor([2, 0])
    from_bytes = prepare(pixels, rows, preprocessing, augmentation, draws)
    from_floats = prepare(pixels.float() / 255, rows, preprocessing, augmentation, draws)
    assert torch.equal(from_bytes, from_floats)


@pytest.mark.parametrize("resident", [True, False])
def test_floats_are_gathered_as_they_are(resident: bool) -> None:
    parts = [np.random.default_rng(seed).normal(size=(3, 2, 1, 1)) for seed in range(2)]
    gathered = ImageStore(parts, CPU, resident=resident).gather(torch.tensor([4, 0, 4]))
    assert np.array_equal(gathered.numpy(), np.concatenate(parts)[[4, 0, 4]])
