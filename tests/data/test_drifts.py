from __future__ import annotations

import pytest
import torch

from metavib.data.drifts import DRIFTS, blurred, foreign_images, inverted, paler, turned, zoomed

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_changes_images_and_leaves_them_images(name: str, channels: int) -> None:
    images = IMAGES.expand(3, channels, 28, 28)
    changed = DRIFTS[name](images)
    assert changed.shape == images.shape
    assert (changed >= -1e-5).all()
    assert (changed <= 1 + 1e-5).all()
    assert not torch.allclose(changed, images, atol=0.01)
    torch.testing.assert_close(changed, DRIFTS[name](images))  # nothing is drawn anew


def test_limits() -> None:
    torch.testing.assert_close(turned(IMAGES, 0), IMAGES)
    torch.testing.assert_close(zoomed(IMAGES, 1), IMAGES)
    torch.testing.assert_close(paler(IMAGES, 1), IMAGES)
    torch.testing.assert_close(inverted(inverted(IMAGES)), IMAGES)
    torch.testing.assert_close(turned(IMAGES, 90), IMAGES.rot90(1, (2, 3)), atol=1e-4, rtol=0)
    grey = torch.full((1, 1, 28, 28), 0.3)
    torch.testing.assert_close(blurred(grey), grey)


def test_images_of_nothing() -> None:
    made = foreign_images(30, 3, 16, torch.device("cpu"))
    assert made.shape == (30, 3, 16, 16)
    assert (made >= 0).all()
    assert (made <= 1).all()
    assert len({image.sum().item() for image in made}) > 15
