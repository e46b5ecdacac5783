"""A backbone that hands features on, and one whose first stages keep their weights."""

from __future__ import annotations

import pytest
import torch
from small_networks import SIDE, plain
from torch import nn

from metavib.core.errors import UserError
from metavib.nn.backbone import Backbone
from metavib.nn.frozen import FixedFeatures, keep_stages
from metavib.nn.networks import build_backbone

WB = ("weight", "bias")


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


class Shrinking(nn.Sequential):
    """Maps of 32, 16 and 8, with a look at the whole map on the way, as squeeze-and-excitation has."""

    def __init__(self) -> None:
        looks = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.Sigmoid())
        layers = [
            nn.Conv2d(3, 4, 3, padding=1),
            Times(looks),
            nn.Conv2d(4, 4, 3, 2, 1),
            nn.Conv2d(4, 4, 3, 2, 1),
        ]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Times(nn.Module):
    def __init__(self, looks: nn.Module) -> None:
        super().__init__()
        self.looks = looks

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return maps * self.looks(maps)


class Tokens(nn.Module):
    """Eight blocks over as many tokens each."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 8, 8)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = tokens + block(tokens)
        return tokens.mean(dim=1)


@pytest.mark.parametrize(
    ("network", "stages", "kept"),
    [
        (Shrinking, 1, ["0.weight", "0.bias", "1.looks.1.weight", "1.looks.1.bias"]),
        (Tokens, 1, ["patches.weight", "patches.bias", *(f"blocks.{n}.{own}" for n in (0, 1) for own in WB)]),
        (
            Tokens,
            3,
            ["patches.weight", "patches.bias", *(f"blocks.{n}.{own}" for n in range(6) for own in WB)],
        ),
    ],
)
def test_the_stages_of_a_network_from_elsewhere_end_where_its_maps_shrink_or_after_a_quarter_of_its_blocks(
    network: type[nn.Module], stages: int, kept: list[str]
) -> None:
    backbone = Backbone.of(network(), image_size=SIDE)
    images = torch.rand(2, 3, SIDE, SIDE)
    before, weights = backbone(images), {name for name, _ in backbone.named_parameters()}
    keep_stages(backbone, stages)
    torch.testing.assert_close(backbone(images), before)  # kernels may differ without gradients
    trained = {name for name, _ in backbone.named_parameters()}
    assert weights - trained == {f"network.{name}" for name in kept}
    assert backbone(images).requires_grad


def test_a_network_from_elsewhere_of_one_stage_is_kept_as_a_whole_or_not_at_all() -> None:
    with pytest.raises(UserError, match="the network has no stages that could be kept alone"):
        keep_stages(Backbone.of(plain(), image_size=SIDE), 1)
