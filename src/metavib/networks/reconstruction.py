"""What a decoder is to restore of an image: its pixels, of a large image fewer."""

from __future__ import annotations

from torch import Tensor, nn

from metavib.networks.backbone import Backbone
from metavib.networks.mlp import MLP
from metavib.shapes import Float

LARGEST_SIDE = 32  # a decoder is there for what it does to the features, not for sharp pictures


def restored_size(backbone: Backbone) -> int:
    """How many numbers a decoder gives for an image of this backbone."""
    side = min(backbone.image_size, LARGEST_SIDE)
    return backbone.channels * side * side


def to_restore(
    backbone: Backbone, images: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, "batch pixels"]:
    """The pixels as the network sees them, averaged to 32 x 32 where there are more.

    Rows of features are restored as the network standardises them, because they may have any unit.
    """
    if isinstance(backbone, MLP):
        return backbone.standardised(images)
    if images.shape[-1] > LARGEST_SIDE:
        images = nn.functional.adaptive_avg_pool2d(images, LARGEST_SIDE)
    return images.flatten(1)
