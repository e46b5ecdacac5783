"""Networks by their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from places import ROOT
from safetensors.torch import load_file, save_file
from small_networks import Plain
from torch import nn
from torchvision import models

import metavib
from metavib.core.errors import UserError
from metavib.nn.backbone import IMAGENET, PIXELS, Wrapped
from metavib.nn.backbones import BACKBONES
from metavib.nn.networks import build_backbone, default_weights, network_named
from metavib.nn.own_network import own_network
from metavib.nn.pure_normalisation import FrozenBatchNorm
from metavib.training.first_network import local_weights

timm = pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of imports is as before: a network by `module:function` adds to it."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests"), *sys.path])


def test_timm_says_how_images_are_to_be_given() -> None:
    backbone = build_backbone("timm:test_vit")
    says = timm.models.get_pretrained_cfg("test_vit")
    assert (backbone.image_size, backbone.channels) == (says.input_size[1], says.input_size[0])
    assert backbone.normalisation == (says.mean, says.std)
    assert backbone.interpolation == says.interpolation == "bicubic"
    assert build_backbone("timm:test_vit", image_size=32).image_size == 32
    assert default_weights("timm:test_vit") == "pretrained"


def test_torchvision_says_how_images_are_to_be_given() -> None:
    network = network_named("torchvision:efficientnet_b2")
    assert network.default_weights == "pretrained"
    with torch.device("meta"):
        backbone = network.build()
    assert (backbone.image_size, backbone.feature_size) == (288, 1408)
    assert backbone.normalisation == IMAGENET


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
def test_a_file_in_timms_layout_gives_the_features_of_timm(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = timm.create_model(name, num_classes=1000).eval()
    for key, value in whole.state_dict().items():
        if "running" in key:
            value.uniform_(0.5, 1.5)
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    torch.save(whole.state_dict(), tmp_path / "weights.pth")
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        expected = whole.forward_head(whole.forward_features(images), pre_logits=True)
        for file in ("weights.safetensors", "weights.pth"):
            backbone = build_backbone(f"timm:{name}", str(tmp_path / file))
            torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-5)


def test_positions_of_a_transformer_fit_another_image_size(tmp_path: Path) -> None:
    whole = timm.create_model("test_vit")
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    backbone = build_backbone("timm:test_vit", str(tmp_path / "weights.safetensors"), 64)
    assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, backbone.feature_size)


def test_a_file_in_torchvisions_layout_gives_the_features_of_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = models.mobilenet_v3_small(weights=None).eval()
    for key, value in whole.state_dict().items():
        if "running" in key:
            value.uniform_(0.5, 1.5)
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    backbone = build_backbone("torchvision:mobilenet_v3_small", str(tmp_path / "weights.safetensors"), 64)
    whole.classifier[3] = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), whole(images), rtol=1e-5, atol=1e-5)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=r"do not fit VisionTransformer: .* in timm's layout"):
        build_backbone("timm:test_vit", str(tmp_path / "weights.safetensors"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:convnext_tinny", r"timm has no network 'convnext_tinny'; did you mean convnext_tiny"),
        ("timm:hf-hub:somebody/network", r"timm has no network 'hf-hub:somebody/network'"),
        ("timm:local-dir:/tmp/network", r"timm has no network 'local-dir:/tmp/network'"),
        ("timm:resnet18.made_up", r"timm has no weights 'made_up' of resnet18. Known: .*resnet18.a1_in1k"),
        ("torchvision:resnet_18", r"torchvision has no network 'resnet_18'; did you mean resnet18"),
        ("resnet19", r"unknown backbone 'resnet19'; did you mean 'resnet18'\?.*timm:NAME"),
        ("small_networks:plain", r"code of its owner, which is run only where it is named by hand"),
    ],
)
def test_names_that_no_network_has(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        network_named(name)


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'metavib\[timm\]'"):
        network_named("timm:resnet18")


def test_image_sizes_that_a_network_cannot_take() -> None:
    with pytest.raises(UserError, match=r"timm:test_vit cannot be built for images of 7 x 7|does not take"):
        build_backbone("timm:test_vit", image_size=7)
    with pytest.raises(UserError, match="squeezenet takes images of 224: leave --image-size out"):
        build_backbone("squeezenet", image_size=64)
    with pytest.raises(UserError, match="cannot be built for images of 50 x 50"):
        build_backbone("torchvision:vit_b_16", image_size=50)


def test_published_weights_are_found_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("resnet50_v1", "tf_efficientnet_lite0", "efficientnet_b0"):
        (tmp_path / "weights" / f"{name}-imagenet.safetensors").touch()
    found = {
        "resnet50-v1": "resnet50_v1",
        "timm:tf_efficientnet_lite0": "tf_efficientnet_lite0",
        "timm:tf_efficientnet_lite0.in1k": "tf_efficientnet_lite0",
        "torchvision:efficientnet_b0": "efficientnet_b0",
    }
    for name, file in found.items():
        path = tmp_path / "weights" / f"{file}-imagenet.safetensors"
        assert local_weights(name, default_weights(name), tmp_path) == str(path)
    assert local_weights("timm:resnet18", "pretrained", tmp_path) == "pretrained"
    assert local_weights("small_networks:plain", "none", tmp_path) == "none"


def test_efficientnet_lite_has_the_features_of_timm(real_data: Path) -> None:
    path = real_data / "weights" / "tf_efficientnet_lite0-imagenet.safetensors"
    if not path.exists():
        pytest.skip(f"no {path}")
    backbone = build_backbone("timm:tf_efficientnet_lite0", str(path))
    assert backbone.normalisation == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    whole = timm.create_model("tf_efficientnet_lite0", num_classes=1000).eval()
    whole.load_state_dict(load_file(path))
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = whole.forward_head(whole.forward_features(images), pre_logits=True)
        torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-5)


def test_resnet50_v1_takes_every_second_pixel_in_the_first_convolution() -> None:
    with torch.device("meta"):
        network = BACKBONES["resnet50-v1"]()
    for stage in (network.layer2, network.layer3, network.layer4):
        assert (stage[0].conv1.stride, stage[0].conv2.stride) == ((2, 2), (1, 1))


def test_resnet50_v1_without_its_file_says_where_to_put_it() -> None:
    with pytest.raises(UserError, match=r"put them there as weights/resnet50_v1-imagenet.safetensors"):
        build_backbone("resnet50-v1", "imagenet")


def test_a_network_of_ones_own_in_its_three_forms() -> None:
    by_name = own_network("small_networks:plain")
    assert by_name is not None
    assert by_name.name == "small_networks:plain"
    assert build_backbone(by_name.name, image_size=32, own=by_name).feature_size == 8
    by_function = own_network(Plain)
    assert by_function is not None
    assert by_function.name == "small_networks:Plain"
    given = metavib.Backbone.of(Plain(1), image_size=28)
    assert given.normalisation == PIXELS
    as_it_is = own_network(given)
    assert as_it_is is not None
    assert as_it_is.name == "object:Plain"
    built = build_backbone(as_it_is.name, own=as_it_is)
    assert built is not given  # each run has its own
    assert built.state_dict().keys() == given.state_dict().keys()
    assert own_network("timm:resnet18") is own_network("digits") is own_network(None) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:network", "cannot be imported: ModuleNotFoundError"),
        ("small_networks:nothing", "small_networks has no function 'nothing'"),
        ("small_networks:no_module", "gives a str: let it return a torch.nn.Module"),
        ("small_networks:fails", "small_networks:fails failed: RuntimeError: no such file"),
        ("object:Plain", "was given in Python as it is"),
    ],
)
def test_functions_that_give_no_network(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_backbone(name, image_size=32, own=own_network(name))


def test_a_network_that_its_function_has_trained_keeps_its_statistics() -> None:
    trained = Plain()
    trained.normalised.running_mean.fill_(0.5)
    own = own_network(lambda: trained)
    assert own is not None
    backbone = build_backbone(own.name, image_size=32, own=own)
    assert isinstance(backbone, Wrapped)
    assert backbone.frozen_normalisation
    assert isinstance(backbone.network.normalised, FrozenBatchNorm)
    before = backbone.network.last.weight.clone()
    backbone.initialise_as_torch_does()
    assert torch.equal(backbone.network.last.weight, before)
    with pytest.raises(UserError, match="nobody publishes weights of a network of your own"):
        build_backbone(own.name, "pretrained", 32, own)
