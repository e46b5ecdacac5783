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

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.data.episodes import Episode
from metavib.functional.adaptation import Parameters
from metavib.functional.predictive import Predictive
from metavib.networks.backbone import Backbone
from metavib.networks.tucker import TuckerTensor
from metavib.settings import Settings, setting
from metavib.shapes import Float


@final
class LowRank(SoftmaxClassifier):
    """A network whose weights are generated for each source domain from low-rank tensors; at test for none."""

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

    def embed(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        return self.features(self._agnostic("backbone"), images)

    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        logits = self.logits(self._agnostic("classifier"), embedded)
        return Predictive(torch.log_softmax(logits, dim=-1)[None, None])

    def _agnostic(self, part: str) -> Parameters:
        return {name: values[0] for name, values in self.weights(self.entries[-1:], part).items()}
