"""What cannot be made pure is named before anything is trained."""

from __future__ import annotations

import pytest
import torch
from small_networks import SIDE, Faulty, Plain, Rare
from torch import nn

import metavib
from metavib.core.errors import UserError
from metavib.nn.probing import fault_of_second_order, fault_of_stacking, probe_images


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("state", r"odd.seen changes while the network runs"),
        ("draws", r"its layer odd \(Odd\) draws random numbers"),
        ("dropout", r"its layer odd \(Odd\) draws random numbers while it trains"),
        ("mixes", r"its layer odd \(Odd\) mixes images"),
        ("nan", r"features of Faulty are not finite, first after odd \(Odd\)"),
        ("width", r"Faulty gives \[2, 8\] in training and \[2, 4\] in evaluation"),
        ("maps", r"Faulty gives \[2, 16, 16, 16\] for 2 images of 3 x 32 x 32, not features \[n, d\]"),
        ("pair", r"Faulty gives a tuple, not a tensor of features"),
        ("channels", r"Faulty takes images of 2 channels"),
    ],
)
def test_an_impure_network_is_refused_by_name(fault: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        metavib.Backbone.of(Faulty(fault), image_size=SIDE)


def test_a_network_is_tried_without_leaving_a_trace() -> None:
    network = Plain()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    backbone = metavib.Backbone.of(network, image_size=SIDE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert isinstance(network.normalised, nn.BatchNorm2d)
    assert backbone.feature_size == 8


def test_the_layer_is_named_that_has_no_second_derivatives_or_cannot_be_stacked() -> None:
    usual, rare = (metavib.Backbone.of(kind(), image_size=SIDE) for kind in (Plain, Rare))
    images = probe_images(3, SIDE)
    assert fault_of_second_order(usual, images) is None
    assert fault_of_stacking(usual, images) is None
    assert "network.rare (OnceOnly) has no second derivatives" in str(fault_of_second_order(rare, images))
    assert fault_of_stacking(rare, images) is not None
    assert not rare.stacked
