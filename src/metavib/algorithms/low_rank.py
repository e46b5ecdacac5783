"""Low-rank parameterised networks (Li et al., "Deeper, broader and artier domain generalization", ICCV 2017).

Domain i of S has the indicator z_i = [one-hot of i; 1]. In every layer its weights are W_i = T x_0 z_i, with T a
tensor of S + 1 such weights: what domain i has for itself, plus what all of them share. A domain that was never
seen has z = [0 ... 0; 1]: the agnostic weights. T is Tucker-factored,

    T = core x_0 D x_1 O x_2 I,

and its ranks limit how domains can differ. At full rank it holds a separate network for each of them.

Objective: mean over the images of an episode of the cross-entropy under the weights of their own domain.
Prediction: by the agnostic weights.

Deviations:
- The paper derives the ranks of each layer from an allowed error of the decomposition. Here they are settings, the
  same for all layers: `domain_rank`, and `channel_rank` as a share of a layer's outputs and inputs. The height and
  width of a kernel are not factored; biases and the parameters of normalisations have a mode of domains alone.
- The agnostic weights begin as the given network, random or pre-trained, truncated by the higher-order SVD where
  `channel_rank` is below 1; what domains have for themselves begins near zero.
- Adam would move what a domain has for itself as fast as what all share, however small its gradient, and the
  agnostic weights would learn the less. Here the one-hot in z counts `domain_rate`: 0 gives ERM, 1 the paper's z.
- The paper has AlexNet; here any backbone is factored, layer by layer, with its classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Images
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters
from metavib.nn.functional.predictive import Predictive

START = 0.01  # norm of what a domain has for itself before training; at zero the factors had no gradient


@final
class LowRank(SoftmaxClassifier):
    """A network whose weights are generated for each source domain from low-rank tensors; at test for none."""

    title = "Low-rank (Li et al. 2017)"
    paper = "Li et al., ICCV 2017"

    @dataclass(frozen=True)
    class Config(Settings):
        """The ranks."""

        domain_rank: int = setting(
            2,
            "rank of the mode of domains: 1 gives all domains the same weights but for their size, "
            "the number of source domains + 1 is full",
            minimum=1,
        )
        channel_rank: float = setting(
            1.0, "rank of the modes of inputs and outputs, as a share of their size", above=0, maximum=1
        )
        domain_rate: float = setting(
            0.1, "learning rate of what domains have for themselves, as a share of learning_rate", minimum=0
        )

    STACKABLE = ("domain_rate",)
    PER_DOMAIN = True
    BACKBONES = ("tensors.backbone-",)
    domain_rate: Tensor
    entries: Tensor  # unit vectors: an indicator is a sum of them

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.tensors = nn.ModuleDict()
        for name, first in self.network().items():
            tensor = TuckerTensor(first, domains + 1, config.domain_rank, config.channel_rank)
            self.tensors[name.replace(".", "-")] = tensor
            # The layer has no weights of its own any more: they are given to it.
            owner, _, own = name.rpartition(".")
            setattr(self.get_submodule(owner), own, None)
        self.register_buffer("entries", torch.eye(domains + 1), persistent=False)
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on every image of the episode, by the network of its domain."""
        samples = episode.all_domains()
        dropout = noise.get("dropout")
        masks = None if dropout is None else dropout.unflatten(0, samples.labels.shape)
        one_hot, constant = self.entries.index_select(0, samples.domains), self.entries[-1:]
        weights = self.weights(self.domain_rate * one_hot + constant)
        logits = []
        for place in range(len(samples.domains)):
            own = {name: values[place] for name, values in weights.items()}
            features = self.features(own, samples.images[place], None if masks is None else masks[place])
            logits.append(self.logits(own, features))
        return {"classification": nn.functional.cross_entropy(torch.cat(logits), samples.flat_labels())}

    def weights(self, indicators: Float[Tensor, "picked indicators"], part: str = "") -> Parameters:
        """The parameters that belong to these z, [picked, ...] each; of a part of the network, or of all."""
        return {
            name.replace("-", "."): tensor(indicators)
            for name, tensor in self.tensors.items()
            if name.startswith(part)
        }

    def backbone_features(self, images: Images) -> Float[Tensor, "batch features"]:
        return self.embed(images)

    def embed(self, images: Images) -> Float[Tensor, "batch features"]:
        return self.features(self._agnostic("backbone"), images)

    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        logits = self.logits(self._agnostic("classifier"), embedded)
        return Predictive(torch.log_softmax(logits, dim=-1)[None, None])

    def _agnostic(self, part: str) -> Parameters:
        return {name: values[0] for name, values in self.weights(self.entries[-1:], part).items()}


@final
class TuckerTensor(nn.Module):
    """W(z) = core x_0 (z D) x_1 O x_2 I: the weights of a layer that belong to a domain indicator z.

    The core has a mode for domains and those of the weights. D has a row for each entry of z, O for each output, I
    for each input of the layer. A mode of full rank has no factor, because the core can hold it; the height and
    width of a kernel, which are small, have none either.
    """

    of_domains: nn.Parameter | None  # D
    outputs: nn.Parameter | None  # O
    inputs: nn.Parameter | None  # I

    def __init__(self, first: Tensor, indicators: int, domain_rank: int, channel_rank: float) -> None:
        """The last entry of z, which stands for no domain, has the weights `first`, as near as the ranks allow.
        The others begin near zero and can grow in `domain_rank` - 1 directions.

        `channel_rank` is a share of the outputs, and of the inputs.
        """
        super().__init__()
        core = first.detach()
        self.outputs = self.inputs = None
        if first.ndim > 1:
            self.outputs = _leading_vectors(first, 0, channel_rank)
            self.inputs = _leading_vectors(first, 1, channel_rank)
            if self.outputs is not None:
                core = torch.einsum("or,o...->r...", self.outputs.detach(), core)
            if self.inputs is not None:
                core = torch.einsum("ir,oi...->or...", self.inputs.detach(), core)
            core = core.movedim(1, -1)  # inputs last: kernels then come out as torch is quickest with them
        self.modes = core.shape
        rank = min(domain_rank, indicators)
        own = torch.randn(rank - 1, core.numel()) * START * core.numel() ** -0.5
        self.core = nn.Parameter(torch.cat([own, core.reshape(1, -1)]))
        self.of_domains = None if rank == indicators else nn.Parameter(_directions(indicators, rank))

    def forward(self, indicators: Float[Tensor, "picked indicators"]) -> Float[Tensor, "picked ..."]:
        """The weights of each of these z."""
        coefficients = indicators if self.of_domains is None else indicators @ self.of_domains
        weights = (coefficients @ self.core).unflatten(1, self.modes)
        if self.outputs is not None:
            weights = torch.einsum("or,pr...->po...", self.outputs, weights)
        if self.inputs is not None:
            weights = weights @ self.inputs.mT
        return weights.movedim(-1, 2) if weights.ndim > 2 else weights


def _directions(indicators: int, rank: int) -> Tensor:
    """D before training: the last row has the last direction for itself, the others share the rest."""
    rows = torch.zeros(indicators, rank)
    rows[-1, -1] = 1.0
    if rank > 1:
        nn.init.orthogonal_(rows[:-1, :-1])
    return rows


def _leading_vectors(weights: Tensor, mode: int, share: float) -> nn.Parameter | None:
    """The first left singular vectors along a mode, as the higher-order SVD has them; None for all of them."""
    size = weights.shape[mode]
    rank = math.ceil(share * size)
    if rank == size:
        return None
    unfolded = weights.detach().movedim(mode, 0).flatten(1)
    _, vectors = torch.linalg.eigh(unfolded @ unfolded.T)  # by rising eigenvalues
    return nn.Parameter(vectors[:, -rank:].flip(1).contiguous())
