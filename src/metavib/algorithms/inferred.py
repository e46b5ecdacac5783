"""Classifiers that are inferred, not learnt: what MetaVIB shares with its ablations.

The objective of all three stands in `metavib.py`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Algorithm, Noise, Shapes, dropout_shape
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Int
from metavib.data.episodes import Episode
from metavib.data.store.storage import Batch
from metavib.nn.backbone import Backbone
from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.functional.predictive import (
    ClassMeans,
    Predictive,
    class_logits,
    class_means,
    class_sums,
    log_softmax_of_classes,
    masked_mean,
    means_without_each,
    renumbered,
    softmax_of_classes,
)
from metavib.nn.inference import InferenceNetwork

FEW_CLASSES = 256  # whose sums are made together, whether or not a batch has any of them


class ProbabilisticClassifier(Algorithm):
    """Shared by MetaVIB and its ablations: inferred classifiers, latent codes, and the likelihood term."""

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
        inference: str = setting(
            "layers",
            "the inference networks: three layers, or these beside the feature itself (identity), so that the "
            "first classifier is the class mean",
            choices=("layers", "identity"),
            absent="layers",
        )
        logit_scale: float = setting(
            0.0,
            "what psi . z is multiplied by before training, learnt as its logarithm; 0 multiplies by nothing",
            minimum=0,
            absent=0.0,
        )
        centred: bool = setting(
            False,
            "take the mean of the backbone's features before training from all features: what all images share "
            "then plays no part in psi . z",
            absent=False,
        )

    FITTED: tuple[str, ...] = ("feature_scale",)
    feature_scale: Tensor  # what the backbone's features are divided by
    feature_centre: Tensor  # and what is taken from them first, where they are centred
    class_features: Tensor  # h_c over all source training samples, once `absorb` has seen them
    classifier_mean: Tensor  # of q(psi | D^s) for those h_c, so that a prediction need not infer it again
    classifier_log_variance: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes)
        self.config = config
        self.infer_classifier = self._inference_network()  # g_phi1
        self.infer_latent = self._inference_network()  # g_phi2
        if config.inference == "identity":
            self.infer_latent.begin_as(self.infer_classifier)
        scale = config.logit_scale
        self.log_scale = nn.Parameter(torch.tensor([math.log(scale)])) if scale > 0 else None
        if config.centred:
            self.FITTED = ("feature_scale", "feature_centre")
            self.register_buffer("feature_centre", torch.zeros(backbone.feature_size))
        self.register_buffer("feature_scale", torch.ones(()))
        self.register_buffer("class_features", torch.zeros(classes, backbone.feature_size))
        self.register_buffer("classifier_mean", torch.zeros(classes, config.latent_width))
        self.register_buffer("classifier_log_variance", torch.zeros(classes, config.latent_width))

    def _inference_network(self) -> InferenceNetwork:
        config = self.config
        return InferenceNetwork(
            self.backbone.feature_size,
            config.latent_width,
            config.initial_log_variance,
            identity=config.inference == "identity",
        )

    @abstractmethod
    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "*roles samples"]
    ) -> Float[Tensor, "*roles samples"] | None:
        """The weighted bottleneck term of each meta-test sample; None where the method has none.

        `of_means` are the codes that the class means h_c have themselves.
        """

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Likelihood of the meta-test labels under classifiers inferred from meta-train, and the bottleneck."""
        train, test = episode.meta_train, episode.meta_test
        images = torch.cat([train.flat_images(), test.flat_images()])
        features = self.features(images, noise.get("dropout"))
        labels = torch.cat([train.flat_labels(), test.flat_labels()])
        return self.losses_of(features, labels, len(test.flat_labels()), noise)

    def losses_of(
        self,
        features: Float[Tensor, "samples features"],
        labels: Int[Tensor, "samples"],
        meta_test: int,
        noise: Noise,
    ) -> dict[str, Float[Tensor, ""]]:
        """`losses` from the features of an episode, ordered by domain, the meta-test domain last."""
        classes = self._classes_in(len(labels))
        if classes < self.classes:
            labels = renumbered(labels)
        if self.config.roles == "one":
            count = len(labels) - meta_test
            pooled = class_means(features[:count], labels[:count], classes)
            return self._losses(pooled, features[count:], labels[count:], noise)
        features, labels = features.unflatten(0, (-1, meta_test)), labels.unflatten(0, (-1, meta_test))
        of_roles = self._losses(means_without_each(features, labels, classes), features, labels, noise)
        return {name: values.mean() for name, values in of_roles.items()}

    def _classes_in(self, images: int) -> int:
        """The number of classifiers of an episode: at most one for each of its images."""
        return min(self.classes, images)

    def _losses(
        self,
        pooled: ClassMeans,
        test_features: Float[Tensor, "*roles samples features"],
        labels: Int[Tensor, "*roles samples"],
        noise: Noise,
    ) -> dict[str, Float[Tensor, "*roles"]]:
        """The terms of each division into meta-train, whose class means these are, and meta-test."""
        # One pass for samples and class means: their number is small against the size of the weights.
        codes = self.infer_latent(torch.cat([test_features, pooled.features], dim=-2))
        latent, of_means = codes.split(labels.shape[-1])
        classifiers = self.infer_classifier(pooled.features).draws(noise["classifier"])
        logits = class_logits(self._scaled(classifiers), latent.draws(noise["latent"]), pooled.present)
        log_probabilities = log_softmax_of_classes(logits)
        of_label = labels[..., None, None, :, None].expand(*logits.shape[:-1], 1)
        log_likelihood = log_probabilities.gather(-1, of_label).squeeze(-1).mean(dim=(-3, -2))

        answerable = pooled.present.gather(-1, labels)
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
        """h(x), from its first centre where it is centred, scaled to its first size."""
        features = self.backbone(images, dropout)
        return (features - self.feature_centre if self.config.centred else features) / self.feature_scale

    def begin(self, episode: Episode) -> None:
        """Measure the centre of the backbone's features, and their size (root mean square) around it."""
        self.begin_with(episode.meta_train.flat_images())

    @torch.no_grad()
    def begin_with(self, images: Float[Tensor, "batch channels height width"]) -> None:
        """Measure centre and size of the backbone's features on images of any domains."""
        if self.config.feature_size == 0 and not self.config.centred:
            return
        features = self.backbone(images)
        if self.config.centred:
            self.feature_centre.copy_(features.mean(dim=0))
            features = features - self.feature_centre
        if self.config.feature_size == 0:
            return
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
            logits = self._logits_at_mean(self.infer_latent.mean(embedded))
        else:
            logits = self._drawn_logits(self.infer_latent(embedded), noise)
        return Predictive(log_softmax_of_classes(logits))

    def drawn_and_mean(
        self, embedded: Float[Tensor, "batch features"], noise: Noise
    ) -> tuple[Float[Tensor, "classifier_draws batch classes"], Float[Tensor, "batch classes"]]:
        latent = self.infer_latent(embedded)  # once: it takes longer than all that follows
        at_mean = Predictive(log_softmax_of_classes(self._logits_at_mean(latent.mean)))
        # Without the logarithm, which would be undone: that takes as long again.
        drawn = softmax_of_classes(self._drawn_logits(latent, noise))
        return drawn.mean(dim=1), at_mean.probabilities()

    def _drawn_logits(self, latent: Gaussian, noise: Noise) -> Tensor:
        classifier = Gaussian(self.classifier_mean, self.classifier_log_variance)
        drawn = classifier.sample(noise["classifier"])
        return class_logits(self._scaled(drawn), latent.sample(noise["latent"]))

    def _logits_at_mean(self, latent: Float[Tensor, "batch width"]) -> Tensor:
        return class_logits(self._scaled(self.classifier_mean).unsqueeze(0), latent.unsqueeze(0))

    def _scaled(self, classifiers: Float[Tensor, "*draws classes width"]) -> Tensor:
        """psi by the learnt scale of psi . z: there are fewer classifiers than logits."""
        return classifiers if self.log_scale is None else classifiers * self.log_scale.exp()

    def prediction_noise_shapes(self, batch: int) -> Shapes:
        config = self.config
        return {
            "classifier": (config.classifier_draws, self.classes, config.latent_width),
            "latent": (config.latent_draws, batch, config.latent_width),
        }
