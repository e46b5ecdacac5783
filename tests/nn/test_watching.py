"""Statistics of the maps on the way, whatever the network."""

import threading

import pytest
import torch
from torch import nn

from metavib.nn.backbone import Backbone
from metavib.nn.mlp import MLP
from metavib.nn.networks import network_named
from metavib.nn.watching import Place, middle_of, statistics_of, watched


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("squeezenet", Place("passed", 2)),  # 13 x 13 of 224
        ("resnet18", Place("passed", 2)),
        ("timm:tf_efficientnet_lite0", Place("network.blocks.3", 0)),
        ("torchvision:mobilenet_v3_small", Place("network.features.4", 0)),
    ],
)
def test_the_middle_is_the_first_block_at_a_sixteenth(name: str, place: Place) -> None:
    assert middle_of(network_named(name).build()) == place


def test_a_network_without_maps_has_no_middle() -> None:
    assert middle_of(MLP(3, 4)) is None
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    assert middle_of(Backbone.of(flat, image_size=8, channels=1)) is None


def test_maps_of_small_images_say_nothing_of_looks() -> None:
    assert middle_of(network_named("digits").build()) is None  # 7 x 7 of 28
    tiny = nn.Sequential(nn.Conv2d(1, 3, 16, stride=16), nn.Flatten())
    assert middle_of(Backbone.of(tiny, image_size=64, channels=1)) is None  # 4 x 4
    assert middle_of(Backbone.of(tiny, image_size=112, channels=1)) == Place("network.0", 0)


def test_statistics_are_means_and_deviations() -> None:
    maps = torch.tensor([[[[1.0, 3.0], [1.0, 3.0]], [[2.0, 2.0], [2.0, 2.0]]]])
    assert statistics_of(maps).tolist() == [[2.0, 2.0, 1.0, 0.0]]
    assert statistics_of(maps.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("name", ["digits", "digits-domainbed"])
def test_what_is_seen_is_that_stage_and_changes_no_feature(name: str) -> None:
    backbone = network_named(name).build()
    images = torch.rand(3, 1, 28, 28)
    with watched(backbone, Place("passed", 1)) as seen:
        features = backbone(images)
        by_stages = backbone.at_stages(images)
    expected = statistics_of(by_stages[1])
    assert len(seen) == 1  # of the first pass
    torch.testing.assert_close(seen[0], expected)
    assert torch.equal(features, backbone(images))
    assert len(seen) == 1  # nobody watches any more


def test_a_thread_sees_its_own_images_alone() -> None:
    backbone = network_named("digits").build()
    with watched(backbone, Place("passed", 1)) as seen:
        other = threading.Thread(target=lambda: backbone(torch.rand(5, 1, 28, 28)))
        other.start()
        other.join()
        backbone(torch.rand(2, 1, 28, 28))
    assert [len(one) for one in seen] == [2]


def test_nothing_is_watched_where_no_place_is_given() -> None:
    backbone = network_named("digits").build()
    with watched(backbone, None) as seen:
        backbone(torch.rand(2, 1, 28, 28))
    assert seen == []
