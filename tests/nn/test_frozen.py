"""A backbone that hands features on, and one whose first stages keep their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metavib.core.errors import UserError
from metavib.nn.frozen import FixedFeatures, keep_stages
from metavib.nn.networks import build_backbone


def test_features_are_handed_on_and_nothing_is_left_to_train() -> None:
    backbone, features = FixedFeatures(5), torch.randn(3, 5)
    assert torch.equal(backbone(features.view(3, 5, 1, 1)), features)
    assert not list(backbone.parameters())
    assert not backbone.state_dict()


def test_features_are_measured_by_their_deviation_and_constant_ones_count_as_they_are() -> None:
    features = 100 + torch.tensor([3.0, 0.5, 0.0]) * torch.randn(400, 3)
    backbone = FixedFeatures(3)
    backbone.measure(features.split(64))
    expected = features.std(dim=0, correction=0)
    expected[2] = 1.0
    torch.testing.assert_close(backbone.input_scale().flatten(), expected)


@pytest.mark.parametrize(("name", "stages"), [("digits", 1), ("digits", 2), ("digits-domainbed", 2)])
def test_first_stages_become_constants_and_answers_stay(name: str, stages: int) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name)
    images = torch.rand(2, backbone.channels, backbone.image_size, backbone.image_size)
    before, state = backbone(images), backbone.state_dict()
    names = [parameter for parameter, _ in backbone.named_parameters()]
    keep_stages(backbone, stages)
    assert torch.equal(backbone(images), before)
    assert backbone.state_dict().keys() == state.keys()
    trained = dict(backbone.named_parameters())
    kept = [parameter for parameter in names if parameter not in trained]
    convolutions = [own for own, module in backbone.named_modules() if isinstance(module, nn.Conv2d)]
    assert [f"{own}.weight" in kept for own in convolutions] == [
        number < stages for number in range(len(convolutions))
    ]
    # Nothing is differentiated up to the last stage that is kept.
    *on_the_way, features = backbone.at_stages(images)
    assert [maps.requires_grad for maps in on_the_way] == [
        number >= stages for number in range(len(on_the_way))
    ]
    assert features.requires_grad


def test_a_kept_stage_moves_with_the_network_to_another_type() -> None:
    backbone = build_backbone("digits")
    keep_stages(backbone, 1)
    assert all(value.dtype == torch.float64 for value in backbone.double().state_dict().values())


def test_more_stages_than_there_are_cannot_be_kept() -> None:
    with pytest.raises(UserError, match="stages=3 cannot be frozen: the network has 2 stages") as refusal:
        keep_stages(build_backbone("digits"), 3)
    assert "--freeze stages=1 to stages=2" in str(refusal.value)
