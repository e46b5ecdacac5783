"""Whatever an image is held in, the model sees the pixels that the file of it would give."""

import io

import numpy as np
import pytest
import torch
from deep_files import RAMP, in_colour, tiff
from PIL import Image

from metavib.core.errors import UserError
from metavib.data.decoding.images import decode_within
from metavib.data.decoding.pixel_range import BYTES, PixelRange
from metavib.serving.pixels import decode_given, one_by_one


def pixels_of(image, size):
    return decode_given(image, size, BYTES).pixels


@pytest.fixture
def image():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 11, 3), dtype=np.uint8))


def test_arrays_and_tensors_of_any_layout_are_the_image(image):
    expected = pixels_of(image, 5)
    last = np.array(image)
    first = last.transpose(2, 0, 1)
    for given in (
        last,
        first,
        torch.from_numpy(last),
        torch.from_numpy(first.copy()),
        last / 255.0,
        (last / 255.0).astype(np.float32),
        torch.from_numpy(first / 255.0),
        last.astype(np.int64),
        np.asfortranarray(last),
        last[::-1][::-1],
    ):
        found = pixels_of(given, 5)
        assert found.shape == (3, 5, 5)
        assert np.array_equal(found, expected)


def test_an_image_of_the_right_size_is_not_changed():
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    assert np.array_equal(pixels_of(pixels, 8), pixels)


def test_grey_and_black_and_white_images_have_three_equal_channels():
    grey = np.random.default_rng(2).integers(0, 256, (4, 6), dtype=np.uint8)
    expected = pixels_of(Image.fromarray(grey), 4)
    assert np.array_equal(expected[0], expected[2])
    for given in (grey, grey[None], grey[..., None], torch.from_numpy(grey)[None]):
        assert np.array_equal(pixels_of(given, 4), expected)
    assert set(np.unique(pixels_of(np.eye(4, dtype=bool), 4))) == {0, 255}


def test_what_is_transparent_lies_over_white():
    clear = np.zeros((4, 4, 4), dtype=np.uint8)
    assert (pixels_of(clear, 4) == 255).all()


def test_a_3_x_3_image_is_read_by_the_habit_of_its_library():
    values = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert np.array_equal(pixels_of(values, 3), values.transpose(2, 0, 1))
    assert np.array_equal(pixels_of(torch.from_numpy(values), 3), values)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((5, 5, 5), dtype=np.uint8), "no axis of 1, 3 or 4"),
        (np.zeros(5, dtype=np.uint8), "is not an image"),
        (np.zeros((0, 5, 3), dtype=np.uint8), "is not an image"),
        (np.zeros((1, 1, 5, 5), dtype=np.uint8), "is not an image"),
        (np.full((5, 5), 256), "from 256 to 256"),
        (np.full((5, 5), -1), "from -1"),
        (np.full((5, 5), 1.5), "from 1.5"),
        (np.full((5, 5), np.nan), "nan"),
        (np.full((5, 5), 1j), "complex"),
        (np.full((5, 5), "x"), "is not an image"),
        (3, "int is not an image"),
        (None, "NoneType is not an image"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused_in_words(given, words):
    with pytest.raises(UserError, match=words):
        pixels_of(given, 5)


def test_one_image_is_one_and_many_are_many(image):
    array = np.array(image)
    assert list(one_by_one(image)) == [image]
    assert list(one_by_one("a.png")) == ["a.png"]
    assert len(list(one_by_one(array))) == 1
    assert len(list(one_by_one(np.stack([array, array])))) == 2
    assert len(list(one_by_one(torch.zeros(4, 1, 5, 5)))) == 4
    assert list(one_by_one(iter(["a", "b"]))) == ["a", "b"]
    assert list(one_by_one([])) == []
    with pytest.raises(UserError, match="int is not an image"):
        list(one_by_one(3))


TWELVE_BITS = PixelRange("16-bit", 0.0, 4095.0)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_deep_pillow_image_is_what_its_file_would_be(orientation):
    data = tiff(RAMP[:4, :8] * 16, tag274=orientation)
    with Image.open(io.BytesIO(data)) as opened:
        found = decode_given(opened, 8, TWELVE_BITS)
    expected = decode_within(data, "a", 8, TWELVE_BITS)
    assert np.array_equal(found.pixels, expected.pixels)
    assert found.clipped == expected.clipped


def test_deep_arrays_are_scaled_by_the_range_and_others_are_scaled_already():
    expected = np.rint(RAMP * (255 / 4095)).astype(np.uint8)
    for given in (RAMP, RAMP[None], RAMP.astype(np.int32), torch.from_numpy(RAMP.astype(np.int64)), expected):
        assert np.array_equal(decode_given(given, 64, TWELVE_BITS).pixels[0], expected)
    assert np.array_equal(decode_given(expected / 255, 64, TWELVE_BITS).pixels[0], expected)
    assert decode_given(RAMP + 1, 64, TWELVE_BITS).clipped
    clear = in_colour(RAMP, 0)
    assert (decode_given(clear, 64, TWELVE_BITS).pixels == 255).all()
    opaque = decode_given(in_colour(RAMP, 65535), 64, TWELVE_BITS)
    assert np.array_equal(opaque.pixels[0], expected)
    floats = decode_given(RAMP.astype(np.float32), 64, PixelRange("float", 0.0, 4095.0))
    assert np.array_equal(floats.pixels[0], expected)


def test_a_pillow_image_of_another_depth_is_refused():
    with pytest.raises(UserError, match="the image: is 8-bit, but the model takes 16-bit images"):
        decode_given(Image.new("L", (4, 4)), 4, TWELVE_BITS)
    with pytest.raises(UserError, match="the image: is 16-bit, but the model takes 8-bit images"):
        decode_given(Image.new("I;16", (4, 4)), 4, BYTES)
