from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from places import DATA
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision import models

from metavib.core.errors import UserError
from metavib.nn.backbones import DigitNetwork, ResNet18, SqueezeNet
from metavib.nn.networks import build_backbone
from metavib.nn.weights import load_weights

SQUEEZENET_FILE = DATA / "weights" / "squeezenet1_0-imagenet.safetensors"
DOGS = DATA / "pacs" / "photo" / "dog"


def squeezenet_state() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return models.squeezenet1_0(weights=None).state_dict()


def refusal(source: Path | str) -> str:
    """The one line with which the weights are refused; the network is SqueezeNet."""
    with pytest.raises(UserError) as caught:
        load_weights(SqueezeNet(), str(source))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_none_changes_nothing() -> None:
    backbone = DigitNetwork()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    load_weights(backbone, "none")
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_files_load_without_their_head(tmp_path: Path, suffix: str) -> None:
    state, path = squeezenet_state(), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    backbone = build_backbone("squeezenet", str(path))
    assert all(torch.equal(value, state[key]) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_wrappers_and_prefix_are_taken_off(tmp_path: Path, wrapper: str) -> None:
    state, path = squeezenet_state(), tmp_path / "weights.pth"
    torch.save({wrapper: {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, path)
    backbone = build_backbone("squeezenet", str(path))
    assert torch.equal(backbone.state_dict()["features.0.weight"], state["features.0.weight"])


def test_half_precision_is_widened(tmp_path: Path) -> None:
    state, path = squeezenet_state(), tmp_path / "weights.safetensors"
    save_file({key: value.half() for key, value in state.items()}, path)
    loaded = build_backbone("squeezenet", str(path)).state_dict()["features.0.weight"]
    assert torch.equal(loaded, state["features.0.weight"].half().float())


def test_resnet_file_brings_its_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole, path = models.resnet18(weights=None), tmp_path / "resnet.pth"
    whole.bn1.running_mean.fill_(0.25)
    torch.save(whole.state_dict(), path)
    loaded = build_backbone("resnet18", str(path)).state_dict()
    assert (loaded["bn1.running_mean"] == 0.25).all()
    ignored = ("fc.weight", "fc.bias", "num_batches_tracked")
    assert loaded.keys() == {key for key in whole.state_dict() if not key.endswith(ignored)}

    restored = ResNet18()  # a trained model needs no file to be restored
    restored.freeze_normalisation()
    restored.load_state_dict(loaded)


def test_differing_keys_are_named_with_both_shapes(tmp_path: Path) -> None:
    state, path = squeezenet_state(), tmp_path / "weights.pth"
    state["features.0.weight"] = torch.zeros(96, 1, 7, 7)
    del state["features.0.bias"]
    state["surplus"] = torch.zeros(3)
    torch.save(state, path)
    message = refusal(path)
    assert str(path) in message
    assert "features.0.weight: (96, 1, 7, 7) in the file, (96, 3, 7, 7) in the network" in message
    assert "features.0.bias: nothing in the file, (96,) in the network" in message
    assert "surplus: (3,) in the file, nothing in the network" in message
    assert "more" not in message


def test_five_differing_keys_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "resnet.pth"
    torch.save(models.resnet18(weights=None).state_dict(), path)
    message = refusal(path)
    assert message.count("in the network") == 5
    # SqueezeNet has 25 x 2 tensors, ResNet 20 convolutions, 20 x 4 of normalisation and a head of 2.
    assert f"and {50 + 102 - 5} more" in message


def test_what_is_not_a_plain_tensor_of_floats_is_named(tmp_path: Path) -> None:
    state: dict[str, Any] = dict(squeezenet_state())
    path = tmp_path / "weights.pth"
    state["features.0.weight"] = torch.zeros(96, 3, 7, 7, dtype=torch.int64)
    state["features.0.bias"] = 3
    torch.save(state, path)
    message = refusal(path)
    assert "torch.int64 (96, 3, 7, 7) in the file" in message
    assert "features.0.bias: int in the file" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    state, path = squeezenet_state(), tmp_path / "weights.pth"
    state["features.0.bias"] = torch.full((96,), value, dtype=torch.float64)  # 1e300 is too large for float32
    torch.save(state, path)
    assert "features.0.bias has values that are not finite" in refusal(path)


def test_missing_file_directory_and_other_suffix(tmp_path: Path) -> None:
    assert "no such file; give 'none', 'imagenet', 'pretrained' or a file" in refusal("imagnet")
    assert "not a file of weights" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert "give one that ends in .safetensors" in refusal(tmp_path / "notes.txt")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_file(tmp_path: Path, suffix: str, share: float) -> None:
    whole, path = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    if suffix == ".safetensors":
        save_file(squeezenet_state(), whole)
    else:
        torch.save(squeezenet_state(), whole)
    content = whole.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert str(path) in refusal(path)


class Mischief:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("by_torch", [True, False])
def test_pickle_is_not_executed(tmp_path: Path, by_torch: bool) -> None:
    path, trace = tmp_path / "weights.pth", tmp_path / "trace"
    content = {"features.0.weight": Mischief(trace)}
    if by_torch:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    assert "never done here" in refusal(path)
    assert not trace.exists()


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), {1: torch.zeros(3)}])
def test_file_of_something_else(tmp_path: Path, content: object) -> None:
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    assert "not a state dict of named tensors" in refusal(path)


def test_imagenet_weights_come_from_torchvision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(2)
    state = models.resnet18(weights=None).state_dict()
    asked: list[tuple[str, dict[str, Any]]] = []

    def download(url: str, **options: Any) -> dict[str, Tensor]:
        asked.append((url, options))
        print("Downloading")  # as torch does
        return state

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    backbone = build_backbone("resnet18", "imagenet")
    assert isinstance(backbone, ResNet18)
    assert torch.equal(backbone.state_dict()["conv1.weight"], state["conv1.weight"])
    ((url, options),) = asked
    assert url == models.ResNet18_Weights.IMAGENET1K_V1.url
    assert options["check_hash"] is True
    assert options["weights_only"] is True
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Downloading\n")  # stdout is for results


@pytest.mark.parametrize("failure", [URLError("no network"), RuntimeError("invalid hash value")])
def test_without_a_network_the_error_asks_for_a_file(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def download(url: str, **options: Any) -> dict[str, Tensor]:
        raise failure

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    message = refusal("imagenet")
    assert "--weights FILE" in message
    assert "https://" in message


@pytest.mark.parametrize("name", ["digits", "digits-domainbed"])
def test_imagenet_weights_of_a_network_that_has_none(name: str) -> None:
    with pytest.raises(UserError, match=r"no ImageNet weights for .*--weights FILE"):
        build_backbone(name, "imagenet")


@pytest.mark.skipif(not SQUEEZENET_FILE.is_file(), reason=f"needs {SQUEEZENET_FILE} (set METAVIB_DATA)")
@pytest.mark.skipif(not DOGS.is_dir(), reason=f"needs the PACS photos in {DOGS} (set METAVIB_DATA)")
def test_real_weights_see_dogs_in_photos_of_dogs() -> None:
    """Layout and normalisation are right: with the file's own head, the top class is a breed of dog."""
    backbone = build_backbone("squeezenet", str(SQUEEZENET_FILE))
    head = load_file(SQUEEZENET_FILE)
    side = backbone.image_size
    photos = [
        np.array(Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
        for path in sorted(DOGS.glob("*.webp"))[:10]
    ]
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in backbone.normalisation)
    images = (torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        features, maps = backbone(images), backbone.features(images)
        logits = torch.conv2d(maps, head["classifier.1.weight"], head["classifier.1.bias"])
    torch.testing.assert_close(features, maps.mean((2, 3)))
    top = logits.relu().mean((2, 3)).argmax(1)
    assert ((top >= 151) & (top <= 268)).sum() >= 7, top.tolist()
