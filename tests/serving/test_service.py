"""How much is computed and held at once."""

from __future__ import annotations

import io

import numpy as np
import pytest

from metavib.data.transforms import Preprocessing
from metavib.serving.limits import Limits
from metavib.serving.pixel_arrays import TYPE
from metavib.serving.service import batch_of


@pytest.mark.parametrize(
    ("size", "channels", "at_once", "expected"),
    [(28, 1, 1, 256), (28, 1, 4, 256), (32, 3, 1, 65), (227, 3, 1, 64), (227, 3, 2, 16), (227, 3, 4, 16)],
)
def test_batches_together_are_as_large_as_one_unless_images_are_small(size, channels, at_once, expected):
    preprocessing = Preprocessing(size, channels, (0.0,) * channels, (1.0,) * channels)
    assert batch_of(preprocessing.bytes, at_once) == expected


def array(*shape: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(shape, dtype=np.uint8))
    return file.getvalue()


def test_the_pixels_that_images_become_count_as_held(start):
    server = start(Limits(waiting_bytes=9_000))
    assert server.send(array(10, 28, 28), TYPE).status == 200  # they are pixels already
    assert server.send(array(10, 5, 5), TYPE).status == 200
    reply = server.send(array(12, 5, 5), TYPE)  # 9,408 bytes, as the model takes them
    assert reply.status == 503
    assert "bytes" in reply.json["error"]
    assert server.service.budget.taken == 0


def test_images_of_arrays_are_counted_by_what_became_of_them(start):
    server = start()
    assert server.send(array(7, 28, 28), TYPE).status == 200
    assert server.send(array(2, 28, 28, 2), TYPE).status == 422
    counted = {
        line.split('"')[1]: float(line.split()[-1])
        for line in server.ask("GET", "/metrics").body.decode().splitlines()
        if line.startswith("metavib_images_total")
    }
    assert counted["sure"] + counted["unsure"] == 7
    assert counted["refused"] == 2
