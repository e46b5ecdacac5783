"""MetaVIB: learning to learn with variational information bottleneck (Du et al., ECCV 2020), and its ablations.

The classifier of an episode is not a parameter: it is inferred from the meta-train domains and tried on the
meta-test domain. With h_c the mean feature of the meta-train samples of class c,

    q(psi_c | D^s) = g_phi1(h_c)     the classifier of class c: a Gaussian over weight vectors
    p(z | x)       = g_phi2(h(x))    the latent code of an image
    q(z | D^s_c)   = g_phi2(h_c)     the meta prior: what a code of class c should look like

Objective, on the N samples of the meta-test domain:

    1/N sum_n [ - 1/(L_z L_psi) sum log softmax_c(psi_c . z)[y_n] + beta KL[ p(z|x_n) || q(z|D^s_{y_n}) ] ]

with the KL in closed form and summed over the dimensions. `VIB` has the prior N(0, I) in place of the meta
prior (Alemi et al., ICLR 2017), `Baseline` no bottleneck at all: the paper's two ablations.

Prediction infers psi from the class means of ALL source training samples, which the model keeps.

Deviations and gaps closed:
- The sign in front of beta in the paper's objective is a misprint (the bound above it has the right one), and its
  1/(NC) only rescales the loss. The supplement's algorithm box has the KL reversed: the setting `kl_direction`.
- Where the meta-train domains of an episode lack a class, it gets no logit, and meta-test samples of that class
  are left out of the episode's loss. A class that one source domain alone has would never be learnt so: its images
  are lent to the other domains of an episode (`data/lone_classes.py`).
- An episode has classifiers for the classes of its images alone: of 10,000 classes most have none in it.
- `roles = every` is ours: in one pass of the network each domain of the episode is meta-test in turn.
- Features are scaled to a chosen size (one number, measured on the first episode before training), because that of
  backbones differs by a factor of 20 and psi . z grows with its square. The digit network does best as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm, Noise, Shapes, dropout_shape
from metavib.data.episodes import Episode
from metavib.data.storage import Batch
from metavib.functional.gaussian import Gaussian, kl_divergence, standard_normal_like
from metavib.functional.predictive import (
    ClassMeans,
    Predictive,
    class_logits,
    class_means,
    class_sums,
    log_softmax_of_classes,
    masked_mean,
    means_without_each,
    renumbered,
)
from metavib.networks.backbone import Backbone
from metavib.networks.inference import InferenceNetwork
from metavib.settings import Settings, setting
from metavib.shapes import Float, Int

FEW_CLASSES = 256  # whose sums are made together, whether or not a batch has any of them


class ProbabilisticClassifier(Algorithm):
    """What MetaVIB shares with its ablations: inferred classifiers, latent codes, and the likelihood term."""

    @dataclass(frozen=True)
    class Config(Settings):
        """Settings of all three."""

        latent_width: int = setting(256, "width of both inference networks, of z and of psi", minimum=1)
        latent_draws: int = setting(10, "L_z: draws of z for each image", minimum=1)
        classifier_draws: int = setting(10, "L_psi: draws of psi for each episode", minimum=1)
        initial_log_variance: float = setting(
            0.0, "log sigma^2 of z and psi before training", minimum=-10, maximum=10
        )
        roles: str = setting(
            "one",
            "which domain of an episode is meta-test: one, or every one in turn, all in the same pass",
            choices=("one", "every"),
        )
        feature_size: float = setting(
            1.0, "size of the backbone's features before training; 0 takes them as they are", minimum=0
        )

    feature_scale: Tensor  # what the backbone's features are divided by
    class_features: Tensor  # h_c over all source training samples, once `absorb` has seen them
    classifier_mean: Tensor  # of q(psi | D^s) for those h_c, so that a prediction need not infer it again
    classifier_log_variance: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes)
        self.config = config
        self.infer_classifier = self._inference_network()  # g_phi1
        self.infer_latent = self._inference_network()  # g_phi2
        self.register_buffer("feature_scale", torch.ones(()))
        self.register_buffer("class_features", torch.zeros(classes, backbone.feature_size))
        self.register_buffer("classifier_mean", torch.zeros(classes, config.latent_width))
        self.register_buffer("classifier_log_variance", torch.zeros(classes, config.latent_width))

    def _inference_network(self) -> InferenceNetwork:
        config = self.config
        return InferenceNetwork(self.backbone.feature_size, config.latent_width, config.initial_log_variance)

    @abstractmethod
    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "samples"]
    ) -> Float[Tensor, "samples"] | None:
        """The weighted bottleneck term of each meta-test sample; None where the method has none.

        `of_means` are the codes that the class means h_c have themselves.
        """

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Likelihood of the meta-test labels under classifiers inferred from meta-train, and the bottleneck."""
        train, test = episode.meta_train, episode.meta_test
        images = torch.cat([train.flat_images(), test.flat_images()])
        features = self.features(images, noise.get("dropout"))
        labels = torch.cat([train.flat_labels(), test.flat_labels()])
        classes = self._classes_in(len(labels))
        if classes < self.classes:
            labels = renumbered(labels)
        if self.config.roles == "one":
            count = train.flat_labels().shape[0]
            pooled = class_means(features[:count], labels[:count], classes)
            return self._losses(pooled, features[count:], labels[count:], noise)
        by_domain = (len(train.labels) + len(test.labels), -1)
        features, labels = features.unflatten(0, by_domain), labels.unflatten(0, by_domain)
        drawn = {purpose: noise[purpose] for purpose in ("classifier", "latent")}
        of_each = means_without_each(features, labels, classes)
        of_roles = torch.vmap(self._losses)(of_each, features, labels, drawn)
        return {name: values.mean() for name, values in of_roles.items()}

    def _classes_in(self, images: int) -> int:
        """For how many classes an episode of so many images has classifiers: no more than it has images."""
        return min(self.classes, images)

    def _losses(
        self,
        pooled: ClassMeans,
        test_features: Float[Tensor, "samples features"],
        labels: Int[Tensor, "samples"],
        noise: Noise,
    ) -> dict[str, Float[Tensor, ""]]:
        """The terms of one division into meta-train, whose class means these are, and meta-test."""
        # One pass for samples and class means: their number is small against the size of the weights.
        codes = self.infer_latent(torch.cat([test_features, pooled.features]))
        latent, of_means = codes.split(len(labels))
        classifiers = self.infer_classifier(pooled.features).sample(noise["classifier"])
        logits = class_logits(classifiers, latent.sample(noise["latent"]), pooled.present)
        log_probabilities = log_softmax_of_classes(logits)
        of_label = labels.view(1, 1, -1, 1).expand(*logits.shape[:2], -1, 1)
        log_likelihood = log_probabilities.gather(-1, of_label).mean(dim=(0, 1)).squeeze(-1)

        answerable = pooled.present[labels]
        terms = {"classification": masked_mean(-log_likelihood, answerable)}
        bottleneck = self.bottleneck(latent, of_means, labels)
        if bottleneck is not None:
            terms["bottleneck"] = masked_mean(bottleneck, answerable)
        return terms

    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        shapes = self.prediction_noise_shapes(meta_test_images)
        draws, _, width = shapes["classifier"]
        shapes["classifier"] = (draws, self._classes_in(meta_train_images + meta_test_images), width)
        if self.config.roles == "every":
            domains = meta_train_images // meta_test_images + 1
            shapes = {purpose: (domains, *shape) for purpose, shape in shapes.items()}
        return shapes | dropout_shape(self.backbone, meta_train_images + meta_test_images)

    def features(self, images: Tensor, dropout: Tensor | None = None) -> Float[Tensor, "batch features"]:
        """h(x), at the size that it is to begin with."""
        return self.backbone(images, dropout) / self.feature_scale

    @torch.no_grad()
    def begin(self, episode: Episode) -> None:
        """Measure the size (root mean square) of the backbone's features."""
        if self.config.feature_size == 0:
            return
        features = self.backbone(episode.meta_train.flat_images())
        size = features.square().mean().sqrt().clamp_min(1e-6)
        self.feature_scale.copy_(size / self.config.feature_size)

    def embed(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        return self.features(images)

    @torch.no_grad()
    def absorb(self, source: Iterable[Batch]) -> None:
        """Keep the class means h_c of all source training samples, and the classifier that they give."""
        sums = torch.zeros_like(self.class_features)
        counts = torch.zeros(self.classes, 1, dtype=sums.dtype, device=sums.device)
        everyone = torch.arange(self.classes, device=sums.device)
        for batch in source:
            # Source images come class after class: a batch has few of many classes.
            names = everyone if self.classes <= FEW_CLASSES else batch.labels.unique()
            own_sums, own_counts = class_sums(self.features(batch.images), batch.labels, names)
            sums[names] += own_sums
            counts[names] += own_counts.unsqueeze(-1)
        self.keep(sums / counts)

    @torch.no_grad()
    def keep(self, means: Float[Tensor, "classes features"]) -> None:
        """Predict from these class means h_c from now on, by the classifier that they give."""
        self.class_features.copy_(means)
        classifier = self.infer_classifier(self.class_features)
        self.classifier_mean.copy_(classifier.mean)
        self.classifier_log_variance.copy_(classifier.log_variance)

    def class_means(self) -> Float[Tensor, "classes features"]:
        return self.class_features

    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        if noise is None:
            classifiers = self.classifier_mean.unsqueeze(0)
            latents = self.infer_latent.mean(embedded).unsqueeze(0)
        else:
            classifier = Gaussian(self.classifier_mean, self.classifier_log_variance)
            classifiers = classifier.sample(noise["classifier"])
            latents = self.infer_latent(embedded).sample(noise["latent"])
        return Predictive(log_softmax_of_classes(class_logits(classifiers, latents)))

    def prediction_noise_shapes(self, batch: int) -> Shapes:
        config = self.config
        return {
            "classifier": (config.classifier_draws, self.classes, config.latent_width),
            "latent": (config.latent_draws, batch, config.latent_width),
        }


@final
class Baseline(ProbabilisticClassifier):
    """The probabilistic model without a bottleneck (beta = 0)."""

    @dataclass(frozen=True)
    class Config(ProbabilisticClassifier.Config):
        """No settings beyond the shared ones."""

    def bottleneck(self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "samples"]) -> None:
        return None


@final
class VIB(ProbabilisticClassifier):
    """The ordinary variational information bottleneck: beta KL[ p(z|x) || N(0, I) ]."""

    @dataclass(frozen=True)
    class Config(ProbabilisticClassifier.Config):
        """The shared settings and the weight of the bottleneck."""

        beta: float = setting(0.01, "weight of the bottleneck", minimum=0)

    STACKABLE = ("beta",)
    beta: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, config)
        self._register_stackable(config)

    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "samples"]
    ) -> Float[Tensor, "samples"]:
        return self.beta * kl_divergence(latent, standard_normal_like(latent))


@final
class MetaVIB(ProbabilisticClassifier):
    """The bottleneck against the meta prior of the sample's own class: beta KL[ p(z|x) || q(z|D^s_y) ]."""

    @dataclass(frozen=True)
    class Config(ProbabilisticClassifier.Config):
        """The shared settings, the weight of the bottleneck and the direction of its divergence."""

        beta: float = setting(0.01, "weight of the bottleneck", minimum=0)
        kl_direction: str = setting(
            "posterior-to-prior",
            "posterior-to-prior as the bound has it, prior-to-posterior as the supplement's algorithm box",
            choices=("posterior-to-prior", "prior-to-posterior"),
        )

    STACKABLE = ("beta",)
    beta: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, config)
        self.reversed = config.kl_direction == "prior-to-posterior"
        self._register_stackable(config)

    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "samples"]
    ) -> Float[Tensor, "samples"]:
        prior = of_means.select(labels)
        divergence = kl_divergence(prior, latent) if self.reversed else kl_divergence(latent, prior)
        return self.beta * divergence
