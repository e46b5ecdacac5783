"""A network by its name: one of ours, `timm:NAME`, `torchvision:NAME`, or the user's own `module:function`."""

from __future__ import annotations

from pathlib import Path
from typing import final

from metavib.core.errors import UserError, unknown_name
from metavib.nn import timm_network, torchvision_network
from metavib.nn.backbone import Backbone, Input, Wrapped
from metavib.nn.backbones import BACKBONES
from metavib.nn.network import Network
from metavib.nn.own_network import OwnNetwork, is_own
from metavib.nn.timm_network import TimmNetwork
from metavib.nn.torchvision_network import TorchvisionNetwork
from metavib.nn.weights import load_weights

FORMS = ("timm:NAME", "torchvision:NAME", "MODULE:FUNCTION")  # of names beside `BACKBONES`


@final
class KnownNetwork(Network):
    """A network of `BACKBONES`, by its name."""

    def __init__(self, name: str) -> None:
        self.name, self.kind = name, BACKBONES[name]
        self.small = self.kind.small

    @property
    def weight_files(self) -> tuple[str, ...]:
        if self.kind.imagenet_weights is None:
            return self.kind.weight_files
        from torchvision import models

        # torchvision's files are named <network>-<hash>.pth
        return (Path(models.get_weight(self.kind.imagenet_weights).url).name.rpartition("-")[0],)

    @property
    def default_weights(self) -> str:
        """ImageNet's where they are published, else none."""
        return "imagenet" if self.kind.imagenet_weights or self.kind.weight_files else "none"

    @property
    def title(self) -> str:
        return (self.kind.__doc__ or "").splitlines()[0]

    def build(self, image_size: int | None = None, given: Input | None = None) -> Backbone:
        backbone = self.kind()
        if image_size not in (None, backbone.image_size):
            raise UserError(
                f"{self.name} takes images of {backbone.image_size}: leave --image-size out, or take a network of "
                f"timm or torchvision, as --backbone torchvision:{_twin(self.name)}."
            )
        return backbone


def network_named(name: str, own: OwnNetwork | None = None) -> Network:
    """The network of this name. One of the user's own must be given with it: a name alone never runs code."""
    if own is not None and own.name == name:
        return own
    if name in BACKBONES:
        return KnownNetwork(name)
    if name.startswith(timm_network.PREFIX):
        return TimmNetwork(name)
    if name.startswith(torchvision_network.PREFIX):
        return TorchvisionNetwork(name)
    if is_own(name):
        raise UserError(
            f"the network {name!r:.100} is code of its owner, which is run only where it is named by hand: give "
            f"--backbone {name:.100} again (in Python: backbone=...)."
        )
    raise unknown_name("backbone", name, (*BACKBONES, *FORMS))


def require_name(name: str) -> None:
    """Refuse a name that no network has. A network of the user's own may be any `module:function`."""
    if not is_own(name):
        network_named(name)


def default_weights(name: str) -> str:
    """The weights that a network begins with where none are named: those that its library has trained."""
    return "none" if is_own(name) else network_named(name).default_weights


def build_backbone(
    name: str, weights: str = "none", image_size: int | None = None, own: OwnNetwork | None = None
) -> Backbone:
    """The named network with its weights, tried out.

    Weights are "none" (torch's global generator draws), "imagenet" or "pretrained" (published), or a file.
    """
    backbone = network_named(name, own).build(image_size)
    load_weights(backbone, weights)
    if isinstance(backbone, Wrapped):
        backbone.require_pure()
    return backbone


def _twin(name: str) -> str:
    return {"squeezenet": "squeezenet1_0", "resnet50-v1": "resnet50"}.get(name, name.partition("-")[0])
