"""A network that a name stands for: what is known of it before it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from metavib.nn.backbone import Backbone, Input


class Network(ABC):
    """A network by its name, as `networks.network_named` gives it."""

    name: str
    small: bool = False  # one run alone leaves a GPU idle

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """Itself: it never changes, and a network keeps hold of it while copies are made."""
        return self

    @property
    @abstractmethod
    def default_weights(self) -> str:
        """The weights that it begins with where none are named."""

    @property
    def weight_files(self) -> tuple[str, ...]:
        """DATA/weights/<one of them>-imagenet.safetensors serves as its weights."""
        return ()

    @property
    @abstractmethod
    def title(self) -> str:
        """A line that says what it is."""

    @abstractmethod
    def build(self, image_size: int | None = None, given: Input | None = None) -> Backbone:
        """The network with weights that torch's global generator draws.

        `image_size` is another one than its own. `given` is all of what it was trained on, as a model directory
        says: a library may have changed its mind since.
        """
