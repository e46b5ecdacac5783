"""Networks of timm by their names: `timm:convnext_tiny`. How images are to be given, timm says itself."""

from __future__ import annotations

import difflib
import sys
from types import ModuleType
from typing import Any, final

from torch import nn

from metavib.core.errors import UserError, require_installed
from metavib.nn.backbone import Backbone, Input, Published, State, Wrapped, input_of
from metavib.nn.network import Network
from metavib.nn.probing import in_short, quiet

PREFIX = "timm:"


@final
class TimmNetwork(Network):
    """A network that timm lists, without its head. Nothing but that name is given to timm."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bare = name.removeprefix(PREFIX)
        require_installed("timm", "a backbone timm:NAME needs timm", extra="timm")
        import timm

        self.timm = timm
        _require_known(self.timm, self.bare)
        self.architecture, _, self.tag = self.bare.partition(".")

    @property
    def default_weights(self) -> str:
        return "pretrained" if self.timm.models.is_model_pretrained(self.bare) else "none"

    @property
    def weight_files(self) -> tuple[str, ...]:
        """By its own name, and by that of the network alone where the tag is the one that timm means by it."""
        usual = self.timm.models.get_pretrained_cfg(self.architecture)
        if self.tag and (usual is None or usual.tag != self.tag):
            return (self.bare,)
        return (self.bare, self.architecture) if self.tag else (self.bare,)

    @property
    def title(self) -> str:
        return f"{self.bare}, a network of timm {self.timm.__version__}"

    def build(self, image_size: int | None = None, given: Input | None = None) -> Backbone:
        size = image_size if given is None else given.image_size
        network = self._made(size)
        says: Any = network.pretrained_cfg
        head = says.get("classifier") or ()
        heads = (head,) if isinstance(head, str) else head
        return Wrapped(
            network,
            given or input_of(network, image_size),
            Published(
                "timm's",
                lambda: self._made(size, pretrained=True).state_dict(),
                self._fitted,
                tuple(f"{name}." for name in heads),
            ),
        )

    def _made(self, size: int | None, *, pretrained: bool = False) -> nn.Module:
        cfg = self.timm.models.get_pretrained_cfg(self.bare)
        sized: dict[str, Any] = {}
        if (
            size is not None
            and cfg is not None
            and cfg.fixed_input_size
            and (size, size) != cfg.input_size[1:]
        ):
            sized["img_size"] = size
        try:
            with quiet():
                return self.timm.create_model(self.bare, pretrained=pretrained, num_classes=0, **sized)
        except Exception as error:  # of the network, of the hub, or of a size that does not fit
            if pretrained:
                raise UserError(
                    f"timm's weights of {self.bare} could not be had ({in_short(error)}); download them elsewhere "
                    "and give the file with --weights FILE, or lay it into the data folder as "
                    f"weights/{self.weight_files[-1]}-imagenet.safetensors."
                ) from error
            raise UserError(f"{self.name} cannot be built{_at(size)}: {in_short(error)}.") from error

    def _fitted(self, state: State, network: nn.Module) -> State:
        """A file's weights as the network has them: timm resizes position embeddings to another image size."""
        own = network.state_dict()
        if all(getattr(state.get(key), "shape", None) == value.shape for key, value in own.items()):
            return state
        adapt = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
        if adapt is None:
            return state
        try:
            with quiet():
                return adapt(dict(state), network)
        except Exception:  # a file of another network: what differs is told of the file as it is
            return state


def _require_known(timm: ModuleType, name: str) -> None:
    """Only what timm itself lists is given to it: other names would make it look on the hub or on the disk."""
    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        nearest = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        meant = f"; did you mean {', '.join(nearest)}?" if nearest else "."
        raise UserError(f"timm has no network {name!r:.100}{meant} timm.list_models() has all of them.")
    tagged = timm.list_models(f"{architecture}.*", include_tags=True)
    if tag and name not in tagged:
        raise UserError(
            f"timm has no weights {tag!r:.100} of {architecture}. Known: {', '.join(tagged) or 'none'}."
        )


def _at(size: int | None) -> str:
    return "" if size is None else f" for images of {size} x {size}"
