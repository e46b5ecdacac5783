"""The inference networks g_phi of MetaVIB: from a feature to a distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn.functional.gaussian import Gaussian

LARGEST_LOG_VARIANCE = 10.0  # beyond it exp() overflows in the KL; training never needs to come near


class InferenceNetwork(nn.Module):
    """Three fully connected layers with ELU between them; the last gives mean and log sigma^2.

    The tables of the paper's supplement: 256 wide for Rotated MNIST, 1,024 for PACS and VLCS. The paper does
    not say how the layers begin. Torch's own way makes the features of all classes so alike, and the draws so
    wide, that training first forgets both and then needs hundreds of steps to leave psi = z = 0. So the layers
    begin by He et al. (ICCV 2015), which keeps differences alive, and the variance at a chosen value.

    `identity` is ours: the mean is a linear map of the feature plus what the layers say, whose last one begins at
    zero. The map begins as an isometry, so that a code begins as the feature itself; where codes are narrower,
    it keeps as much of the distances as a random projection does.
    """

    def __init__(
        self, feature_size: int, width: int, initial_log_variance: float, *, identity: bool = False
    ) -> None:
        super().__init__()
        self.hidden_1 = nn.Linear(feature_size, width)
        self.hidden_2 = nn.Linear(width, width)
        self.output = nn.Linear(width, 2 * width)
        nn.init.kaiming_normal_(self.hidden_1.weight, nonlinearity="relu")
        nn.init.kaiming_normal_(self.hidden_2.weight, nonlinearity="relu")
        nn.init.kaiming_normal_(self.output.weight, nonlinearity="linear")
        for layer in (self.hidden_1, self.hidden_2, self.output):
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.output.bias[width:], initial_log_variance)
        self.direct = None
        if identity:
            nn.init.zeros_(self.output.weight)
            self.direct = nn.Linear(feature_size, width, bias=False)
            nn.init.orthogonal_(self.direct.weight, gain=max(1.0, feature_size / width) ** 0.5)

    @torch.no_grad()
    def begin_as(self, other: InferenceNetwork) -> None:
        """Take the first weights of another network of the same shape."""
        for own, its in zip(self.parameters(), other.parameters(), strict=True):
            own.copy_(its)

    def forward(self, features: Float[Tensor, "*batch features"]) -> Gaussian:
        """The distribution inferred from each feature."""
        return self.layers(features)[-1]

    def mean(self, features: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch width"]:
        """The mean alone, where nothing is to be drawn: half of the last layer."""
        first = nn.functional.elu(self.hidden_1(features))
        second = nn.functional.elu(self.hidden_2(first))
        width = self.hidden_2.out_features
        mean = nn.functional.linear(second, self.output.weight[:width], self.output.bias[:width])
        return mean if self.direct is None else mean + self.direct(features)

    def layers(self, features: Float[Tensor, "*batch features"]) -> tuple[Tensor, Tensor, Gaussian]:
        """The output of each of the three layers, the last as a distribution (the information plane needs all)."""
        first = nn.functional.elu(self.hidden_1(features))
        second = nn.functional.elu(self.hidden_2(first))
        mean, log_variance = self.output(second).chunk(2, dim=-1)
        if self.direct is not None:
            mean = mean + self.direct(features)
        return first, second, Gaussian(mean, log_variance.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE))
