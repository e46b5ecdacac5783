"""Networks of torchvision by their names: `torchvision:convnext_tiny`. Its weights say how to give images."""

from __future__ import annotations

import difflib
from typing import Any, final

from torch import nn

from metavib.core.errors import UserError
from metavib.nn.backbone import IMAGENET, Backbone, Input, Normalisation, Published, State, Wrapped, input_of
from metavib.nn.network import Network
from metavib.nn.probing import in_short, quiet

PREFIX = "torchvision:"
CLASSES = 1000  # of ImageNet: by their number the head is found
_WITHOUT_AUXILIARY = {"googlenet", "inception_v3"}  # which have heads on the way, for training alone
_SIDES = ("aux1.", "aux2.", "AuxLogits.")


@final
class TorchvisionNetwork(Network):
    """A classifier that torchvision lists, without its head."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bare = name.removeprefix(PREFIX)
        from torchvision import models

        known = models.list_models(module=models)
        if self.bare not in known:
            nearest = difflib.get_close_matches(self.bare, known, n=3, cutoff=0.5)
            meant = f"; did you mean {', '.join(nearest)}?" if nearest else f". Known: {', '.join(known)}"
            raise UserError(f"torchvision has no network {self.bare!r:.100}{meant}")

    @property
    def _weights(self) -> Any:
        from torchvision import models

        return models.get_model_weights(self.bare).DEFAULT

    @property
    def default_weights(self) -> str:
        return "pretrained"

    @property
    def weight_files(self) -> tuple[str, ...]:
        return (self.bare,)

    @property
    def title(self) -> str:
        return f"{self.bare}, a network of torchvision; pretrained: {self._weights}"

    def build(self, image_size: int | None = None, given: Input | None = None) -> Backbone:
        transforms = self._weights.transforms()
        usual = transforms.crop_size[0]
        size = given.image_size if given is not None else image_size or usual
        network, head_keys = self._made(size, usual)
        normalisation = (
            Normalisation(tuple(transforms.mean), tuple(transforms.std)) if transforms else IMAGENET
        )
        images = given or input_of(network, size, 3, *normalisation, transforms.interpolation.value)
        return Wrapped(
            network,
            images,
            Published("torchvision's", self._state, head_keys=(*head_keys, *_SIDES)),
        )

    def _made(self, size: int, usual: int) -> tuple[nn.Module, tuple[str, ...]]:
        from torchvision import models

        options: dict[str, Any] = {}
        if self.bare.startswith("vit_") and size != usual:
            options["image_size"] = size
        if self.bare in _WITHOUT_AUXILIARY:
            options |= {"aux_logits": False, "init_weights": False}
        try:
            with quiet():
                network = models.get_model(self.bare, weights=None, **options)
        except Exception as error:  # a size that does not fit
            raise UserError(
                f"{self.name} cannot be built for images of {size} x {size}: {in_short(error)}."
            ) from error
        return network, _without_head(network)

    def _state(self) -> State:
        try:
            with quiet():
                return self._weights.get_state_dict(
                    progress=False, check_hash=True, map_location="cpu", weights_only=True
                )
        except Exception as error:  # no network, a broken download or a damaged file in torch's cache
            raise UserError(
                f"torchvision's weights of {self.bare} could not be had from {self._weights.url}; download them "
                "elsewhere and give the file with --weights FILE."
            ) from error


def _without_head(network: nn.Module) -> tuple[str, ...]:
    """Take the last layer of the classifier away; how the keys of its weights begin."""
    for name, layer in reversed(list(network.named_modules())):
        outputs = layer.out_features if isinstance(layer, nn.Linear) else getattr(layer, "out_channels", None)
        if outputs == CLASSES:
            owner, _, own = name.rpartition(".")
            setattr(network.get_submodule(owner), own, nn.Identity())
            return (f"{name}.",)
    raise AssertionError(f"{type(network).__name__} has no head for {CLASSES} classes")
