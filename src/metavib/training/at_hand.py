"""The network of a run on photographs where none is named: the best whose weights are here already.

Accuracy on ImageNet stands for how good a network is, as it is known before anything is trained.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch

from metavib.core.errors import installing
from metavib.data.sources.catalog import default_data_root
from metavib.nn.networks import network_named
from metavib.nn.timm_network import PREFIX

BEST_FIRST = (
    "timm:tf_efficientnet_lite2",  # 77.6 % on ImageNet
    "resnet50",  # 76.1
    "timm:tf_efficientnet_lite0",  # 75.1, at a tenth of the arithmetic of a ResNet-50
    "resnet50-v1",  # 75
    "resnet18",  # 69.8
    "squeezenet",  # 58.1
)
SMALL_FIRST = (
    "timm:tf_efficientnet_lite0",
    "timm:tf_efficientnet_lite2",
    "resnet18",
    "squeezenet",
    "resnet50-v1",
)


class AtHand(NamedTuple):
    """A network, where its weights lie, and what keeps a better one from being taken."""

    name: str
    weights: Path
    timm_is_missing: bool

    def in_words(self) -> str:
        """The line that a run begins with."""
        more = f" ({installing(extra='timm')} for those of timm)" if self.timm_is_missing else ""
        return (
            f"network: {self.name}, the best for this device whose weights are here, {self.weights}{more}. "
            "--backbone takes another."
        )


def network_at_hand(data_root: Path | None, device: torch.device) -> AtHand | None:
    """The best network whose weights lie in DATA/weights or were downloaded before; None where there is none.

    On a CPU a network that costs little comes before one that is a little better.
    """
    has_timm = importlib.util.find_spec("timm") is not None
    missing = False
    for name in BEST_FIRST if device.type != "cpu" else SMALL_FIRST:
        of_timm = name.startswith(PREFIX)
        stems = (name.removeprefix(PREFIX),) if of_timm else network_named(name).weight_files
        path = _found(stems, data_root or default_data_root())
        if path is not None and of_timm and not has_timm:
            missing = True
        elif path is not None:
            return AtHand(name, path, missing)
    return None


def _found(stems: tuple[str, ...], root: Path) -> Path | None:
    """The file in the data folder, or torchvision's download."""
    downloads = Path(torch.hub.get_dir()) / "checkpoints"
    for stem in stems:
        places = [root / "weights" / f"{stem}-imagenet.safetensors", *sorted(downloads.glob(f"{stem}-*.pth"))]
        for path in places:
            if path.is_file():
                return path
    return None
