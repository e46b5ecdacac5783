"""Small networks of two fully connected layers: decoders, discriminators, encoders of what a domain has for
itself; and what of an image a decoder is to restore.

Fully connected, so that stacked runs and many domains are one product of matrices, and rows of features do as
well as images.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.core.shapes import Float, Images, Int
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import stopped
from metavib.nn.mlp import MLP

LARGEST_SIDE = 32  # a decoder is there for what it does to the features, not for sharp pictures


@final
class TwoLayers(nn.Module):
    """A hidden layer with ReLU and a linear one."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return self.output(self.hidden(inputs).relu())

    def frozen(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The output, with a gradient for the inputs alone and none for the weights."""
        return functional_call(self, stopped(dict(self.named_parameters())), (inputs,))


@final
class DomainTwoLayers(nn.Module):
    """One `TwoLayers` for each source domain, initialised as torch's linear layers are."""

    def __init__(self, domains: int, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.hidden_weight = _drawn(inputs, domains, inputs, width)
        self.hidden_bias = _drawn(inputs, domains, width)
        self.output_weight = _drawn(width, domains, width, outputs)
        self.output_bias = _drawn(width, domains, outputs)

    def forward(
        self, domains: Int[Tensor, "picked"], inputs: Float[Tensor, "... samples inputs"]
    ) -> Float[Tensor, "picked samples outputs"]:
        """The outputs of these domains' networks, each for its own row of inputs, or all for one batch."""
        hidden = _linear(inputs, self.hidden_weight, self.hidden_bias, domains).relu()
        return _linear(hidden, self.output_weight, self.output_bias, domains)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor, domains: Tensor) -> Tensor:
    return inputs @ weight.index_select(0, domains) + bias.index_select(0, domains).unsqueeze(-2)


def _drawn(inputs: int, *shape: int) -> nn.Parameter:
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def restored_size(backbone: Backbone) -> int:
    """How many numbers a decoder gives for an image of this backbone."""
    side = min(backbone.image_size, LARGEST_SIDE)
    return backbone.channels * side * side


def to_restore(backbone: Backbone, images: Images) -> Float[Tensor, "batch pixels"]:
    """The pixels as the network sees them, averaged to 32 x 32 where there are more.

    Rows of features are restored as the network standardises them, because they may have any unit.
    """
    if isinstance(backbone, MLP):
        return backbone.standardised(images)
    if images.shape[-1] > LARGEST_SIDE:
        images = nn.functional.adaptive_avg_pool2d(images, LARGEST_SIDE)
    return images.flatten(1)
