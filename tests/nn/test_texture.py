from __future__ import annotations

import math

import pytest
import torch

from metavib.nn.texture import LEAST, OCTAVES, octaves_of, texture_of


def test_a_blank_image_has_its_brightness_and_nothing_else() -> None:
    found = texture_of(torch.full((2, 3, 28, 28), 0.25))
    assert found.shape == (2, 2 + 3 * 3)
    torch.testing.assert_close(found[:, 0], torch.full((2,), 0.25))
    torch.testing.assert_close(found[:, 1:], torch.full((2, 10), math.log(LEAST)))


@pytest.mark.parametrize("octave", [0, 1, 2])
def test_stripes_are_details_of_one_direction_at_one_scale(octave: int) -> None:
    period = 2 ** (octave + 1)
    rows = (torch.arange(64) % period < period // 2).float()
    image = rows.view(1, 1, 64, 1).expand(1, 1, 64, 64)
    details = texture_of(image)[0, 2:].view(-1, 3).exp()
    assert details[octave, 0].item() == pytest.approx(
        1.0 + LEAST
    )  # of black and white, in an orthonormal basis / 2
    details[octave, 0] = 0
    assert details.max() <= LEAST + 1e-6


def test_a_turn_by_a_right_angle_swaps_both_directions() -> None:
    image = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    own, turned = (texture_of(one)[0, 2:].view(-1, 3) for one in (image, image.mT))
    torch.testing.assert_close(own[:, [1, 0, 2]], turned)


@pytest.mark.parametrize(("side", "octaves"), [(6, 0), (8, 1), (28, 3), (64, 4), (224, OCTAVES)])
def test_an_image_is_halved_while_there_is_something_to_halve(side: int, octaves: int) -> None:
    assert octaves_of(side, side) == octaves
    assert texture_of(torch.rand(1, 1, side, side + 1)).shape == (1, 2 + 3 * octaves)
