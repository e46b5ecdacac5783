"""Arrays of pixels: what is read, what is refused, and that they get the answer of the same image as a file."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from metavib.serving.http.limits import Limits
from metavib.serving.http.pixel_arrays import TYPE, images_of
from metavib.serving.http.refusals import Refusal


def saved(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(values: bytes, data: bytes = b"abcd") -> bytes:
    """A file of version 2 with these values, which numpy would not write."""
    header = b"{" + values + b"}\n"
    return b"\x93NUMPY\x02\0" + len(header).to_bytes(4, "little") + header + data


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7, 3), (2, 3, 5, 7), (64, 2, 2)])
def test_the_array_is_the_images(shape):
    array = some(*shape)
    assert np.array_equal(images_of(saved(array), Limits()), array)


def test_a_longer_header_is_read_too():
    file = io.BytesIO()
    np.lib.format.write_array(file, some(2, 3, 3), version=(2, 0))
    assert len(images_of(file.getvalue(), Limits())) == 2


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 415),
        (b"\x93NUMPY", 415),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), 415),
        (b"\x93NUMPY\x09\x00" + bytes(100), 415),
        (b"\x93NUMPY\x01\x00\x40\x00" + b"(" * 64, 415),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 64, 415),
        (b"\x93NUMPY\x01\x00\x24\x00" + b"__import__('os').system('true')" + b" " * 5, 415),
        (pickle.dumps(some(1, 2, 2)), 415),
        (saved(np.array([[[None]]]), allow_pickle=True), 422),
        (saved(some(1, 2, 2).astype(np.float32)), 422),
        (saved(some(4, 4)), 422),
        (saved(some(1, 1, 1, 2, 2)), 422),
        (saved(some(0, 4, 4)), 422),
        (saved(np.asfortranarray(some(2, 4, 4))), 422),
        (saved(some(2, 4, 4))[:-1], 422),
        (saved(some(2, 4, 4)) + b"x", 422),
        (saved(some(2, 4, 4)).replace(b"(2, 4, 4)", b"(-2,4, 4)"), 422),
        (saved(some(2, 10, 10)).replace(b"(2, 10, 10)", b"(2,99**99,9)"), 415),
        (
            with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (0x" + b"f" * 5000 + b", 2, 2), "),
            415,
        ),
        (
            with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b", 2, 2), "),
            415,
        ),
        (with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 190 + b", 2, 2), "), 415),
        (with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (True, True, True), "), 415),
        (with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (1_0, 2, 2), "), 415),
        (with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (1,, 2, 2), "), 415),
        (with_header(b"'descr': '|u1', 'fortran_order': False, 'shape': (), "), 415),
        (with_header(b"'descr': [('\\ud800', '|u1')], 'fortran_order': False, 'shape': (1, 2, 2), "), 415),
        (with_header(b"'descr': 'u3', 'fortran_order': False, 'shape': (1, 2, 2), "), 415),
        (with_header(b"'descr': '|u1', 'fortran_order': 1, 'shape': (1, 2, 2), "), 415),
        (saved(some(65, 1, 1)), 413),
        (saved(some(1, 11, 10)), 413),
        (saved(some(1, 9, 9)), 413),
    ],
)
def test_what_is_no_array_of_images_is_refused_with_a_remedy(content, status):
    with pytest.raises(Refusal) as refusal:
        images_of(content, Limits(image_bytes=100, image_pixels=80))
    assert refusal.value.status == status
    assert refusal.value.what_to_do


@pytest.mark.parametrize(
    "values",
    [
        b"'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 2), ",
        b"'shape': (1, 2, 2), 'fortran_order': False, 'descr': '|u1'",
        b'"descr":"<u1","fortran_order":False,"shape":(1,2,2)',
    ],
)
def test_headers_of_other_writers_are_read(values):
    assert images_of(with_header(values), Limits()).tolist() == [[[97, 98], [99, 100]]]


def test_a_side_is_bounded_by_itself_since_each_row_costs_memory():
    with pytest.raises(Refusal, match="413") as refusal:
        images_of(saved(np.zeros((1, 65_501, 1), np.uint8)), Limits())
    assert "a side of more than 65,500" in refusal.value.error


def test_mutations_are_answered_or_refused():
    whole, draws = saved(some(2, 4, 4)), np.random.default_rng(1)
    for _ in range(2000):
        content = bytearray(whole)
        for at in draws.integers(0, len(content), draws.integers(1, 6)):
            content[at] = draws.integers(0, 256)
        try:
            outcome = len(images_of(bytes(content), Limits()))
        except Refusal as refusal:
            outcome = refusal.status
        assert outcome in (*range(1, 33), 413, 415, 422)


@pytest.mark.parametrize("shape", [(2, 28, 28), (2, 40, 30), (2, 28, 28, 3), (2, 3, 28, 28)])
def test_pixels_get_the_answer_of_their_file(running, shape):
    array = some(*shape)
    reply = running.send(saved(array), TYPE)
    assert reply.status == 200
    assert [one["name"] for one in reply.json["predictions"]] == ["image 1", "image 2"]
    for pixels, answer in zip(array, reply.json["predictions"], strict=True):
        file = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels).save(file, "PNG")
        (same,) = running.send(file.getvalue()).json["predictions"]
        assert answer["probabilities"] == pytest.approx(same["probabilities"], abs=1e-5)
        assert answer["classifiers"] is None


def test_an_array_without_colours_that_are_known_is_refused_by_the_server(running):
    reply = running.send(saved(some(2, 28, 28, 2)), TYPE)
    assert reply.status == 422
    assert "channels" in reply.json["error"]


def test_samples_come_where_they_are_asked_for(running, predictors):
    reply = running.send(saved(some(1, 28, 28)), TYPE, "?samples=true")
    (answer,) = reply.json["predictions"]
    assert len(answer["classifiers"]) == predictors["sampled"].draws > 0
