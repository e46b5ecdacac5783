"""MetaVIB as an algorithm of DomainBed's harness (Gulrajani and Lopez-Paz, ICLR 2021).

The harness calls `update` with a batch of each training domain and `predict` whenever it likes, and it never shows
all training samples at once. So the class means h_c that a prediction starts from are moving ones: features of the
last updates, the older the less. `docs/python.md` says how to register the class.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from metavib.algorithms import algorithm_named
from metavib.algorithms.base import Noise, Shapes
from metavib.algorithms.metavib import ProbabilisticClassifier
from metavib.data.episodes import Episode, Samples
from metavib.errors import UserError
from metavib.networks.backbone import PIXELS, Backbone
from metavib.networks.backbones import build_backbone
from metavib.networks.mlp import MLP
from metavib.optimization import NonFiniteError
from metavib.randomness import bits, fold, key_of, normal
from metavib.settings import Settings, changed, names_of, setting
from metavib.shapes import Float, Int, Num

PREFIX = "metavib_"  # of our own names among DomainBed's hyperparameters
MLP_WIDTH = 256


@dataclass(frozen=True)
class Adapter(Settings):
    """What the adapter decides beyond the method's own settings."""

    algorithm: str = setting(
        "metavib", "the method or one of its ablations", choices=("metavib", "vib", "baseline")
    )
    backbone: str = setting("", "one of our backbones; empty takes DomainBed's own featurizer")
    weights: str = setting("none", "of our backbone: none, imagenet or a file")
    head_rate: float = setting(
        1.0, "learning rate of the inference networks, as a multiple of DomainBed's lr", above=0
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
    """What DomainBed's algorithms are: `update` trains on a batch of each domain, `predict` gives logits.

    Hyperparameters: `lr` and `weight_decay` as the harness has them; with the prefix `metavib_` those of `Adapter`
    and of the method (`metavib_beta`, `metavib_latent_width`, ...). First weights come from torch's generator, as
    in DomainBed; all other draws are keyed by its seed and the update's number, and use up none of its numbers.
    """

    seed: Tensor
    updates: Tensor
    sums: Tensor
    counts: Tensor

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
        rate = float(hparams.get("lr", 1e-3))
        heads = [p for name, p in self.algorithm.named_parameters() if not name.startswith("backbone.")]
        groups: list[dict[str, Any]] = [
            {"params": list(backbone.parameters())},
            {"params": heads, "lr": rate * own.head_rate},
        ]
        self.optimizer = torch.optim.Adam(
            groups,
            lr=rate,
            weight_decay=float(hparams.get("weight_decay", 0.0)),
        )
        self.register_buffer("seed", torch.tensor(torch.initial_seed() & 0x7FFFFFFFFFFFFFFF))
        self.register_buffer("updates", torch.tensor(0))
        # Features of each class and how many, both fading: their quotient is the moving mean.
        self.register_buffer("sums", torch.zeros(num_classes, backbone.feature_size))
        self.register_buffer("counts", torch.zeros(num_classes))

    def update(
        self, minibatches: Sequence[tuple[Tensor, Tensor]], unlabeled: object = None
    ) -> dict[str, float]:
        """One step on a batch (x, y) of each training domain; unlabelled samples are not used."""
        episode = self._episode(minibatches)
        if self.updates == 0:
            self.algorithm.begin(episode)
        meta_train, meta_test = (len(samples.flat_labels()) for samples in episode)
        noise = self._noise("update", self.algorithm.noise_shapes(meta_train, meta_test), self.updates)
        with _outputs_of(self.algorithm.backbone) as outputs:
            terms = self.algorithm(episode, noise)
        loss = torch.stack(list(terms.values())).sum()
        values = {"loss": loss.item()} | {name: term.item() for name, term in terms.items()}
        if not math.isfinite(values["loss"]):
            raise NonFiniteError(
                f"training broke down at update {int(self.updates)}: {values}. Try a lower lr."
            )
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.algorithm.parameters(), self.clip_norm)
        self.optimizer.step()
        labels = torch.cat([samples.flat_labels() for samples in episode])
        self._remember(outputs[0].detach() / self.algorithm.feature_scale, labels)
        self.updates += 1
        return values

    def predict(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        """Log-probabilities, the mean over the draws. All samples see the same draws, those of the seed.

        A class that no batch had so far is not answered with; before the first update all classes are.
        """
        noise = self._noise("predict", self.algorithm.prediction_noise_shapes(1))
        answer = self.algorithm.predictive(self.algorithm.embed(_as_images(x)), noise)
        seen = (self.counts > 0) | (self.updates == 0)
        return (
            answer.probabilities()
            .clamp_min(torch.finfo(torch.float32).tiny)
            .log()
            .masked_fill(~seen, -math.inf)
        )

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        """The same as `predict`."""
        return self.predict(x)

    def _episode(self, minibatches: Sequence[tuple[Tensor, Tensor]]) -> Episode:
        """All domains, one of them meta-test: the seed says which (of no matter where each is in turn)."""
        least = min(len(labels) for _, labels in minibatches)
        images = torch.stack([_as_images(x[:least]) for x, _ in minibatches])
        labels = torch.stack([y[:least] for _, y in minibatches])
        chosen = bits(fold(fold(self.seed, key_of("roles")), self.updates), (1,)).remainder(len(minibatches))
        order = (torch.arange(len(minibatches), device=labels.device) + chosen + 1).remainder(
            len(minibatches)
        )
        images, labels = images[order], labels[order]
        return Episode(
            Samples(images[:-1], labels[:-1], order[:-1]), Samples(images[-1:], labels[-1:], order[-1:])
        )

    def _noise(self, purpose: str, shapes: Shapes, number: Tensor | None = None) -> Noise:
        found = {}
        for name, shape in shapes.items():
            key = fold(self.seed, key_of(purpose, name))
            found[name] = normal(key if number is None else fold(key, number), shape)
        return found

    @torch.no_grad()
    def _remember(self, features: Float[Tensor, "samples features"], labels: Int[Tensor, "samples"]) -> None:
        """Take the features into the class means, and infer from these the classifier that predicts."""
        membership = (labels == torch.arange(len(self.counts), device=labels.device).unsqueeze(-1)).to(
            features
        )
        counts = membership.sum(dim=1)
        kept = torch.where(counts > 0, self.decay, 1.0)
        self.counts.mul_(kept).add_(counts)
        self.sums.mul_(kept.unsqueeze(-1)).add_(membership @ features)
        self.algorithm.keep(self.sums / self.counts.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1))


def settings_of(hparams: Mapping[str, Any]) -> tuple[Adapter, Any]:
    """The adapter's and the method's settings among DomainBed's hyperparameters; other names are refused."""
    given = {name.removeprefix(PREFIX): value for name, value in hparams.items() if name.startswith(PREFIX)}
    of_adapter = {name: value for name, value in given.items() if name in names_of(Adapter)}
    own = changed(Adapter(), of_adapter, "MetaVIB")
    usual: Any = algorithm_named(own.algorithm).Config
    others = {name: value for name, value in given.items() if name not in of_adapter}
    return own, changed(usual(roles="every"), others, "MetaVIB")


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
    backbone = build_backbone(own.backbone, own.weights)
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


@contextlib.contextmanager
def _outputs_of(backbone: Backbone) -> Iterator[list[Tensor]]:
    """What the backbone gives while this lasts: the losses need the same features, and one pass serves both."""
    found: list[Tensor] = []
    handle = backbone.register_forward_hook(lambda module, inputs, features: found.append(features))
    try:
        yield found
    finally:
        handle.remove()
