"""MetaVIB as an algorithm of DomainBed's harness (Gulrajani and Lopez-Paz, ICLR 2021).

The harness calls `update` with a batch of each training domain and `predict` whenever it likes, and it never shows
all training samples at once. So the class means h_c that a prediction starts from are moving ones: features of the
last updates, the older the less. `docs/python.md` says how to register the class.

It does not say where the features come from either. So training begins where no draw and no bottleneck drowns what
is to be learnt, whatever the network: `settings_of`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from metavib.algorithms import algorithm_named
from metavib.algorithms.base import Noise, Shapes
from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.algorithms.metavib import Bottlenecked
from metavib.core.errors import UserError
from metavib.core.settings import Settings, changed, names_of, setting
from metavib.core.shapes import Float, Int, Num
from metavib.nn.backbone import PIXELS, Backbone
from metavib.nn.functional.predictive import class_sums
from metavib.nn.mlp import MLP
from metavib.nn.networks import build_backbone
from metavib.nn.own_network import own_network
from metavib.nn.randomness import key_of
from metavib.training.optimizer import NonFiniteError

PREFIX = "metavib_"  # of our own names among DomainBed's hyperparameters
MLP_WIDTH = 256
RAMP = 300  # updates in which the weight of the bottleneck rises from 0 to beta
PAPERS_RATE = 1e-4  # of Adam, in the supplement
_SEEDS = 0x7FFFFFFFFFFFFFFF  # what a torch generator takes


@dataclass(frozen=True)
class Adapter(Settings):
    """Settings of the adapter beyond the method's own."""

    algorithm: str = setting(
        "metavib", "the method or one of its ablations", choices=("metavib", "vib", "baseline")
    )
    backbone: str = setting(
        "", "a network by its name, as --backbone has it; empty takes DomainBed's own featurizer"
    )
    weights: str = setting("none", "of that network: none, imagenet, pretrained or a file")
    head_rate: float = setting(
        0.0,
        "learning rate of the inference networks, as a multiple of DomainBed's lr; 0 is the paper's rate, 0.0001",
        minimum=0,
    )
    alike: bool = setting(
        True,
        "both inference networks begin with the same weights: psi . z is then large where a feature is like h_c",
    )
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 does not clip", minimum=0)
    decay: float = setting(
        0.9,
        "what stays of a class's mean feature at each update that has samples of it",
        minimum=0,
        maximum=0.9999,
    )


@final
class MetaVIB(nn.Module):
    """An algorithm of DomainBed: `update` trains on a batch of each domain, `predict` gives logits.

    Hyperparameters: `lr` and `weight_decay` as the harness has them; with the prefix `metavib_` those of `Adapter`
    and of the method (`metavib_beta`, `metavib_latent_width`, ...). First weights come from torch's generator, as
    in DomainBed; all other draws are keyed by its seed and the update's number, and use up none of its numbers.
    """

    seed: Tensor
    updates: Tensor
    sums: Tensor
    counts: Tensor
    own_seed: int  # the buffers' values where reading them costs nothing
    updates_so_far: int
    drawn: Noise | None  # of predictions; None where the classifier is older than the class means

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        num_domains: int,
        hparams: Mapping[str, Any],
        featurizer: nn.Module | None = None,
    ) -> None:
        """`featurizer` is any network from inputs to features `[n, d]`, in place of `metavib_backbone`."""
        super().__init__()
        if num_domains < 2:
            raise UserError("MetaVIB needs two or more training domains: give fewer test_envs.")
        self.hparams = dict(hparams)
        own, method = settings_of(hparams)
        self.clip_norm, self.decay = own.clip_norm, own.decay
        backbone = _backbone(tuple(input_shape), self.hparams, own, featurizer)
        kind: Any = algorithm_named(own.algorithm)
        self.algorithm: ProbabilisticClassifier = kind(backbone, num_classes, method)
        if own.alike:
            self.algorithm.infer_latent.begin_as(self.algorithm.infer_classifier)
        rate = float(hparams.get("lr", 1e-3))
        heads = [p for name, p in self.algorithm.named_parameters() if not name.startswith("backbone.")]
        groups: list[dict[str, Any]] = [
            {"params": list(backbone.parameters())},
            {"params": heads, "lr": rate * own.head_rate or PAPERS_RATE},
        ]
        self.optimizer = torch.optim.Adam(
            groups,
            lr=rate,
            weight_decay=float(hparams.get("weight_decay", 0.0)),
            fused=True,  # a step of a small network is mostly the calls of its operators
        )
        self.register_buffer("seed", torch.tensor(torch.initial_seed() & _SEEDS))
        self.register_buffer("updates", torch.tensor(0))
        # Features of each class and how many, both fading: their quotient is the moving mean.
        self.register_buffer("sums", torch.zeros(num_classes, backbone.feature_size))
        self.register_buffer("counts", torch.zeros(num_classes))
        _read_back(self)
        self.register_load_state_dict_post_hook(_read_back)

    def update(
        self, minibatches: Sequence[tuple[Tensor, Tensor]], unlabeled: object = None
    ) -> dict[str, float]:
        """One step on a batch (x, y) of each training domain; unlabelled samples are not used."""
        images, labels = self._concatenated(minibatches)
        meta_test = len(labels) // len(minibatches)
        if self.updates_so_far == 0:
            self.algorithm.begin_with(images)
        if isinstance(self.algorithm, Bottlenecked):
            self.algorithm.updates.fill_(self.updates_so_far)
        shapes = self.algorithm.noise_shapes(len(labels) - meta_test, meta_test)
        noise = self._noise(key_of("update", self.own_seed, self.updates_so_far), shapes)
        features = self.algorithm.features(images, noise.get("dropout"))
        terms = self.algorithm.losses_of(features, labels, meta_test, noise)
        loss = torch.stack(list(terms.values())).sum()
        # Read together: each reading waits for the device.
        numbers = torch.stack([loss, *terms.values()]).tolist()
        values = dict(zip(["loss", *terms], numbers, strict=True))
        if not math.isfinite(values["loss"]):
            raise NonFiniteError(
                f"training broke down at update {self.updates_so_far}: {values}. Try a lower lr."
            )
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm > 0:
            learnt = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(learnt, self.clip_norm)
        self.optimizer.step()
        self._remember(features.detach(), labels)
        self.updates += 1
        self.updates_so_far += 1
        return values

    def predict(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        """Log-probabilities, the mean over the draws. All samples see the same draws, those of the seed.

        A class that no batch had so far is not answered with; before the first update all classes are.
        """
        noise = self._ready()
        answer = self.algorithm.predictive(self.algorithm.embed(_as_images(x)), noise)
        seen = (self.counts > 0) | (self.updates_so_far == 0)
        return (
            answer.probabilities()
            .clamp_min(torch.finfo(torch.float32).tiny)
            .log()
            .masked_fill(~seen, -math.inf)
        )

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        """Logits, as `predict` gives them: DomainBed calls either."""
        return self.predict(x)

    def _concatenated(self, minibatches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """All batches one after another, each cut to the smallest. The last is meta-test where one domain is.

        Which one that is follows from the seed. Where every domain is meta-test in turn, they stay in their order.
        """
        batches = list(minibatches)
        if self.algorithm.config.roles == "one":
            first = key_of("roles", self.own_seed, self.updates_so_far) % len(batches)
            batches = batches[first:] + batches[:first]
        least = min(len(labels) for _, labels in batches)
        images = torch.cat([_as_images(x[:least]) for x, _ in batches])
        return images, torch.cat([y[:least] for _, y in batches])

    def _noise(self, key: int, shapes: Shapes) -> Noise:
        """All the noise in one draw, which is a function of the key: the generator lives no longer than this."""
        device = self.counts.device
        generator = torch.Generator(device).manual_seed(key & _SEEDS)
        sizes = [math.prod(shape) for shape in shapes.values()]
        drawn = torch.randn(sum(sizes), generator=generator, device=device).split(sizes)
        return {name: own.view(shape) for (name, shape), own in zip(shapes.items(), drawn, strict=True)}

    @torch.no_grad()
    def _remember(self, features: Float[Tensor, "samples features"], labels: Int[Tensor, "samples"]) -> None:
        """Take the features into the class means. The classifier that these give is inferred when it is asked."""
        sums, counts = class_sums(features, labels, torch.arange(len(self.counts), device=labels.device))
        kept = torch.where(counts > 0, self.decay, 1.0)
        self.counts.mul_(kept).add_(counts)
        self.sums.mul_(kept.unsqueeze(-1)).add_(sums)
        self.drawn = None

    @torch.no_grad()
    def _ready(self) -> Noise:
        """Infer the classifier from the class means, unless it is; the noise of all predictions until the next."""
        if self.drawn is None or self.drawn["latent"].device != self.counts.device:
            fewest = torch.finfo(torch.float32).tiny
            self.algorithm.keep(self.sums / self.counts.clamp_min(fewest).unsqueeze(-1))
            key = key_of("predict", self.own_seed)
            self.drawn = self._noise(key, self.algorithm.prediction_noise_shapes(1))
        return self.drawn


def _read_back(module: MetaVIB, incompatible: object = None) -> None:
    """Take seed and number of updates from the buffers: reading those in each update would wait for the device."""
    module.own_seed, module.updates_so_far = int(module.seed), int(module.updates)
    module.drawn = None


def settings_of(hparams: Mapping[str, Any]) -> tuple[Adapter, Any]:
    """The adapter's and the method's settings among DomainBed's hyperparameters; other names are refused.

    The usual settings are those of a start that leads somewhere. Features are scaled to the size w^(-1/4), w being
    the latent width, and the inference networks give psi and z of about that size. With variances of
    1 / (2 sqrt(w)) draws make psi . z vary by about one. At size and variance 1 it would be sqrt(3 w), far more
    than classes differ by, and training does away with psi and z before it has learnt anything.
    """
    given = {name.removeprefix(PREFIX): value for name, value in hparams.items() if name.startswith(PREFIX)}
    of_adapter = {name: value for name, value in given.items() if name in names_of(Adapter)}
    own = changed(Adapter(), of_adapter, "MetaVIB")
    usual: Any = algorithm_named(own.algorithm).Config
    others = {name: value for name, value in given.items() if name not in of_adapter}
    width = changed(usual(), others, "MetaVIB").latent_width  # w
    begun = usual(
        roles="every", feature_size=width**-0.25, initial_log_variance=max(-0.5 * math.log(4 * width), -10.0)
    )
    weak = {"beta": 0.001, "ramp": RAMP} if "beta" in names_of(usual) else {}
    return own, changed(begun, weak | others, "MetaVIB")


@final
class Given(Backbone):
    """A network from elsewhere as a backbone. What it keeps and draws is its own affair."""

    normalisation = PIXELS

    def __init__(self, network: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.flat = network, len(input_shape) == 1
        self.channels, self.image_size = input_shape[0], input_shape[-1]
        self.feature_size = int(getattr(network, "n_outputs", 0)) or _outputs(network, input_shape)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.network(images.flatten(1) if self.flat else images)


def _backbone(
    input_shape: tuple[int, ...], hparams: dict[str, Any], own: Adapter, featurizer: nn.Module | None
) -> Backbone:
    if featurizer is None and not own.backbone:
        try:
            networks = importlib.import_module("domainbed.networks")
        except ModuleNotFoundError as error:
            if error.name != "domainbed":  # something that DomainBed itself lacks
                raise
        else:
            featurizer = networks.Featurizer(input_shape, hparams)
    if featurizer is not None:
        return Given(featurizer, input_shape)
    if len(input_shape) == 1:
        return MLP(input_shape[0], MLP_WIDTH)
    if not own.backbone:
        raise UserError(
            "DomainBed is not installed here: name one of our backbones, as in metavib_backbone='digits'."
        )
    side = input_shape[-1] if ":" in own.backbone else None  # the others have a size of their own
    backbone = build_backbone(own.backbone, own.weights, side, own_network(own.backbone))
    wanted = (backbone.channels, backbone.image_size, backbone.image_size)
    if input_shape != wanted:
        raise UserError(f"{own.backbone} takes images of {wanted}, and the dataset has {input_shape}.")
    return backbone


@torch.no_grad()
def _outputs(network: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many features the network gives: found by asking it."""
    training = network.training
    features = network.eval()(torch.zeros(1, *input_shape))
    network.train(training)
    if features.dim() != 2:
        raise UserError(
            f"the featurizer must give features [n, d], not {tuple(features.shape)}: flatten them."
        )
    return int(features.shape[1])


def _as_images(inputs: Num[Tensor, "batch ..."]) -> Num[Tensor, "batch channels height width"]:
    """Rows of features as images of one pixel."""
    return inputs if inputs.dim() == 4 else inputs[:, :, None, None]
