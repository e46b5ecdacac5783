from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import functional as torchvision_functional

from metavib.data.transforms import DRAWS_PER_IMAGE, Augmentation, Preprocessing, augment, with_channels
from metavib.nn.backbone import IMAGENET

AREA, SHAPE, LEFT, TOP, FLIP, BRIGHTNESS, CONTRAST, SATURATION, GREY = range(DRAWS_PER_IMAGE)
EVERYTHING = Augmentation(smallest_crop=0.5, flip=0.5, colour=0.5, grey=0.5)


def images(count: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 8, 8, generator=torch.Generator().manual_seed(0))


def draws(count: int = 2, **values: float) -> Tensor:
    """Uniform numbers that change nothing, unless values are named."""
    numbers = torch.full((count, DRAWS_PER_IMAGE), 0.5)
    numbers[:, [FLIP, GREY]] = 1 - 2**-24
    for name, value in values.items():
        numbers[:, globals()[name]] = value
    return numbers


def test_settings_that_change_nothing_change_nothing() -> None:
    assert not Augmentation().active
    assert torch.equal(augment(images(), Augmentation(), torch.rand(2, DRAWS_PER_IMAGE)), images())
    for changing in ({"smallest_crop": 0.9}, {"flip": 0.1}, {"colour": 0.1}, {"grey": 0.1}):
        assert Augmentation(**changing).active


def test_draws_in_the_middle_change_nothing() -> None:
    mild = Augmentation(flip=0.5, colour=0.5, grey=0.5)
    torch.testing.assert_close(augment(images(), mild, draws()), images(), rtol=0, atol=1e-5)


def test_a_certain_flip_is_the_exact_mirror_image() -> None:
    flipped = augment(images(), Augmentation(flip=1.0), torch.rand(2, DRAWS_PER_IMAGE))
    torch.testing.assert_close(flipped, images().flip(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("corner", "columns"),
    [
        (0.0, [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25]),
        (1.0, [3.75, 4.25, 4.75, 5.25, 5.75, 6.25, 6.75, 7]),
    ],
)
def test_a_quarter_of_a_ramp_is_stretched_to_the_whole(corner: float, columns: list[float]) -> None:
    ramp = torch.arange(8.0).expand(1, 1, 8, 8) / 7  # from left to right
    quarter = Augmentation(smallest_crop=0.25)
    across = augment(ramp, quarter, draws(1, AREA=0.0, LEFT=corner))
    expected = (torch.tensor(columns) / 7).expand(8, 8)
    torch.testing.assert_close(across[0, 0], expected, rtol=0, atol=1e-5)
    down = augment(ramp.mT, quarter, draws(1, AREA=0.0, TOP=corner))
    torch.testing.assert_close(down[0, 0], expected.T, rtol=0, atol=1e-5)


def test_the_aspect_of_a_crop_is_drawn_between_3_to_4_and_4_to_3() -> None:
    ramps = torch.stack([torch.arange(8.0).expand(8, 8), torch.arange(8.0).expand(8, 8).T])[None] / 7
    crop = augment(ramps, Augmentation(smallest_crop=0.25), draws(1, AREA=0.0, SHAPE=1 - 2**-24))[0]
    width = (crop[0, 0, 4] - crop[0, 0, 3]).item() * 7  # the step from pixel to pixel, in pixels of the image
    height = (crop[1, 4, 0] - crop[1, 3, 0]).item() * 7
    assert width * height == pytest.approx(0.25, abs=1e-4)
    assert width / height == pytest.approx(4 / 3, abs=1e-4)


def test_a_whole_crop_is_the_whole_image() -> None:
    whole = augment(images(), Augmentation(smallest_crop=0.5), draws(AREA=1.0))
    torch.testing.assert_close(whole, images(), rtol=0, atol=1e-5)


def test_brightness_contrast_and_saturation_by_hand() -> None:
    image = torch.tensor([0.4, 0.2, 0.8]).view(1, 3, 1, 1) * torch.tensor([[1.0, 0.5]])
    strong = Augmentation(colour=1.0)
    brighter = augment(image, strong, draws(1, BRIGHTNESS=0.75))
    torch.testing.assert_close(brighter, (image * 1.5).clamp(max=1.0))
    grey = (image * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    flat = augment(image, strong, draws(1, CONTRAST=0.0))
    torch.testing.assert_close(flat, grey.mean().expand_as(image))
    both = augment(image, strong, draws(1, BRIGHTNESS=1.0, CONTRAST=0.0))  # one after the other, each clamped
    bright = (image * 2).clamp(max=1.0)
    grey_of_bright = (bright * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1)
    torch.testing.assert_close(both, grey_of_bright.mean().expand_as(image))
    pale = augment(image, strong, draws(1, SATURATION=0.25))
    torch.testing.assert_close(pale, (grey + image) / 2)


def test_a_grey_image_has_equal_channels_by_the_weights_of_itu() -> None:
    grey = augment(images(), Augmentation(grey=1.0), torch.rand(2, DRAWS_PER_IMAGE))
    expected = torchvision_functional.rgb_to_grayscale(images(), num_output_channels=3)
    torch.testing.assert_close(grey, expected, rtol=0, atol=2e-4)  # torchvision's weights have four digits
    assert torch.equal(grey[:, 0], grey[:, 2])
    one_channel = images(channels=1)
    assert torch.equal(augment(one_channel, Augmentation(grey=1.0), draws()), one_channel)


@pytest.mark.parametrize("position", range(DRAWS_PER_IMAGE))
def test_an_image_is_changed_by_its_own_draws_only(position: int) -> None:
    numbers = draws(3, AREA=0.3, FLIP=0.2, GREY=0.9)
    other = numbers.clone()
    other[1, position] = 0.1 if position == GREY else 0.8
    first, second = (augment(images(3), EVERYTHING, n) for n in (numbers, other))
    assert torch.equal(first[[0, 2]], second[[0, 2]])
    assert (first[1] - second[1]).abs().max() > 1e-3


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0, 1 - 2**-24, width=32), min_size=DRAWS_PER_IMAGE, max_size=DRAWS_PER_IMAGE),
    st.sampled_from([1, 3]),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
def test_pixels_stay_between_zero_and_one(
    numbers: list[float], channels: int, crop: float, colour: float
) -> None:
    strong = Augmentation(smallest_crop=crop, flip=0.5, colour=colour, grey=0.5)
    checkered = (torch.arange(64).view(1, 1, 8, 8) % 2).float().expand(1, channels, 8, 8)
    for image in (images(1, channels), checkered):
        changed = augment(image, strong, torch.tensor([numbers]))
        assert changed.shape == image.shape
        assert changed.min() >= 0
        assert changed.max() <= 1


def test_preprocessing_is_the_normalisation_of_torchvision() -> None:
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    preprocessing = Preprocessing(8, 3, IMAGENET.mean, IMAGENET.std)
    expected = torchvision_functional.normalize(pixels / 255, list(IMAGENET.mean), list(IMAGENET.std))
    torch.testing.assert_close(preprocessing(pixels), expected)
    torch.testing.assert_close(preprocessing.normalised(pixels / 255), expected)


def test_grey_pixels_become_three_equal_channels() -> None:
    pixels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    coloured = with_channels(pixels, 3)
    assert coloured.shape == (2, 3, 2, 2)
    assert all((coloured[:, [channel]] == pixels).all() for channel in range(3))


def test_colours_become_grey_by_their_weights_rounded_to_the_nearest() -> None:
    pixels = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], dtype=np.uint8)
    grey = with_channels(pixels.reshape(4, 3, 1, 1), 1)
    assert grey.dtype == np.uint8
    assert grey.shape == (4, 1, 1, 1)
    assert grey.ravel().tolist() == [76, 150, 29, 255]


def test_images_with_the_right_channels_are_not_copied() -> None:
    pixels = np.zeros((1, 3, 2, 2), dtype=np.uint8)
    assert with_channels(pixels, 3) is pixels
