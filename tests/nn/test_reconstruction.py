from __future__ import annotations

import pytest
import torch

from metavib.nn.backbones import BACKBONES, DigitNetwork
from metavib.nn.mlp import MLP
from metavib.nn.two_layers import restored_size, to_restore


def test_digits_are_restored_as_they_are() -> None:
    digits = torch.rand(3, 1, 28, 28)
    assert torch.equal(to_restore(DigitNetwork(), digits), digits.flatten(1))
    assert restored_size(DigitNetwork()) == 784


def test_large_images_are_averaged() -> None:
    images = torch.rand(2, 3, 224, 224)
    found = to_restore(DigitNetwork(), images).view(2, 3, 32, 32)
    torch.testing.assert_close(found[1, 2, 4, 31], images[1, 2, 28:35, 217:224].mean())
    # As many pixels where the side is no multiple of 32; an image of one colour keeps it.
    torch.testing.assert_close(to_restore(DigitNetwork(), torch.ones(2, 3, 227, 227)), torch.ones(2, 3072))


@pytest.mark.parametrize("name", ["digits", "squeezenet", "alexnet-paper"])
def test_the_size_is_that_of_what_is_restored(name: str) -> None:
    kind = BACKBONES[name]
    images = torch.zeros(1, kind.channels, kind.image_size, kind.image_size)
    assert to_restore(DigitNetwork(), images).shape == (1, restored_size(kind.__new__(kind)))


def test_rows_of_features_are_restored_without_their_units() -> None:
    network = MLP(2, 4)
    rows = torch.tensor([[1e6, 1.0], [3e6, 1.0], [5e6, 4.0]], dtype=torch.float64)
    network.standardise_by(rows)
    found = to_restore(network, rows[:, :, None, None])
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.std(dim=0, correction=0), torch.ones(2))
    assert restored_size(network) == 2
