"""D-SAM: domain generalization with domain-specific aggregation modules (D'Innocente and Caputo, GCPR 2018).

All domains share one backbone. What is general in its features and what is specific differs from stage to stage,
so that each source domain d has a module of its own that takes from every stage what serves it. With u_1 ... u_L
what the backbone has after its stages, the features u_L last,

    a_1 = u_1,    a_l = relu( A^d_l [ a_(l-1) averaged to the size of u_l ; u_l ] ),    logits = W^d a_L + b^d

with 1 x 1 convolutions A. An image of domain d passes through module d alone: a module learns from its domain, the
backbone from all.

Objective: mean over the images of an episode of the cross-entropy of the logits of their own domain's module.
Prediction: an image of an unseen domain passes through all modules; the mean of their logits decides.

Deviations: a node stands at each pooling of the backbone, or at each group of residual blocks; the authors' ResNet
has one at each block, their AlexNet one at each layer. Averages bring a stage to the size of the next, in place of
strided convolutions; all nodes have the same width, and the modules no dropout. The features are those that all
methods here have: of a convolutional backbone they are averaged over the image before the last node, not after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Algorithm, Noise, Shapes, dropout_shape
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Images, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.domain_classifiers import DomainClassifiers
from metavib.nn.functional.predictive import Predictive


@final
class DSAM(Algorithm):
    """A softmax classifier for each source domain, on features of several depths; their mean at test."""

    title = "D-SAM"
    paper = "D'Innocente and Caputo, GCPR 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """The size of the modules."""

        width: int = setting(256, "channels of a module's nodes", minimum=1)
        stages: int = setting(
            8,
            "how many of the backbone's last stages are aggregated with its features; 0: the features alone",
            minimum=0,
        )

    PER_DOMAIN = True
    domains: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.left_out = max(0, len(backbone.stage_sizes) - config.stages)
        sizes = (*backbone.stage_sizes[self.left_out :], backbone.feature_size)
        self.aggregation = AggregationModules(domains, sizes, config.width, classes)
        self.register_buffer("domains", torch.arange(domains), persistent=False)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str | None:
        assert isinstance(config, cls.Config)
        return (
            None if config.stages == 0 else "takes maps of the backbone's stages (--set stages=0 takes none)"
        )

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on every image of the episode, by the module of its domain."""
        samples = episode.all_domains()
        stages = self._stages(samples.flat_images(), noise.get("dropout"))
        by_domain = [stage.unflatten(0, samples.labels.shape) for stage in stages]
        aggregated = self.aggregation.aggregated(samples.domains, by_domain)
        logits = self.aggregation.classifiers.of(samples.domains).logits(aggregated)
        return {"classification": nn.functional.cross_entropy(logits.flatten(0, 1), samples.flat_labels())}

    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        return dropout_shape(self.backbone, meta_train_images + meta_test_images)

    def embed(self, images: Images) -> Float[Tensor, "batch features"]:
        """The aggregated features of all modules, side by side."""
        for_all = [stage.unsqueeze(0) for stage in self._stages(images)]
        return self.aggregation.aggregated(self.domains, for_all).movedim(0, 1).flatten(1)

    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        aggregated = embedded.unflatten(1, (len(self.domains), -1)).movedim(1, 0)
        logits = self.aggregation.classifiers.of(self.domains).logits(aggregated).mean(dim=0)
        return Predictive(torch.log_softmax(logits, dim=-1)[None, None])

    def _stages(self, images: Tensor, dropout: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.backbone.at_stages(images, dropout)[self.left_out :]


@final
class AggregationModules(nn.Module):
    """One module for each source domain: a chain of nodes along the stages, and a linear classifier.

    A node averages what came before to the size of its stage, joins both, and is a 1 x 1 convolution with ReLU.
    Nodes of all domains lie in one tensor, so that all modules are one product of matrices.
    """

    def __init__(self, domains: int, sizes: Sequence[int], width: int, classes: int) -> None:
        """`sizes` are the channels of the stages, the features' last; without further stages there is no node."""
        super().__init__()
        first, *others = sizes
        inputs = [before + own for before, own in zip([first, *[width] * len(others)], others, strict=False)]
        self.nodes = nn.ParameterList(_begun(domains, count, width) for count in inputs)
        self.biases = nn.ParameterList(torch.zeros(domains, 1, width) for _ in inputs)
        self.classifiers = DomainClassifiers(domains, width if others else first, classes)

    def aggregated(
        self,
        domains: Int[Tensor, "picked"],
        stages: Sequence[Float[Tensor, "shared samples ..."]],
    ) -> Float[Tensor, "picked samples width"]:
        """By the modules of these domains: each its own row of samples, or all of them the same ones."""
        rows = _rows(stages[0])
        for weight, bias, stage in zip(self.nodes, self.biases, stages[1:], strict=True):
            own = _rows(stage)
            before = _averaged(rows, own.shape[-2])
            shared = own.expand(len(before), *own.shape[1:])
            joined = torch.cat([before, shared], dim=-1)  # [picked or shared, samples, side, side, channels]
            product = joined.flatten(1, 3) @ weight.index_select(0, domains)
            rows = (product + bias.index_select(0, domains)).relu().unflatten(1, own.shape[1:4])
        return rows.flatten(2, 3).mean(dim=2).expand(len(domains), -1, -1)


def _begun(domains: int, inputs: int, width: int) -> nn.Parameter:
    """By He et al. (ICCV 2015), as the layers of our other networks."""
    return nn.Parameter(torch.randn(domains, inputs, width) * (2.0 / inputs) ** 0.5)


def _rows(stage: Float[Tensor, "shared samples ..."]) -> Float[Tensor, "shared samples side side channels"]:
    """Channels last; units are maps of one pixel."""
    return stage.movedim(2, -1) if stage.ndim == 5 else stage.unsqueeze(2).unsqueeze(2)


def _averaged(
    rows: Float[Tensor, "picked samples before before channels"], side: int
) -> Float[Tensor, "picked samples side side channels"]:
    """Averaged to maps of this side, over windows as adaptive pooling has them; maps as small already stay.

    By products of matrices, because torch's pooling of maps with their channels last is slow in stacked runs.
    """
    before = rows.shape[2]
    if before == side:
        return rows
    places, windows = (torch.arange(count, device=rows.device) for count in (before, side))
    first, end = windows * before // side, ((windows + 1) * before + side - 1) // side
    within = (places >= first.unsqueeze(-1)) & (places < end.unsqueeze(-1))
    share = within.to(rows.dtype) / (end - first).unsqueeze(-1)  # [side, before]
    narrow = share @ rows  # over the width, [picked, samples, before, side, channels]
    return (share @ narrow.flatten(3)).unflatten(-1, (side, -1))
