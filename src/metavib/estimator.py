"""MetaVIB as a scikit-learn classifier, for arrays of features or of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from metavib.algorithms import algorithm_named
from metavib.algorithms.base import Algorithm
from metavib.array_training import (
    FEATURES,
    arrays_of,
    as_pixels,
    backbone_for,
    rebuilt,
    train,
    untrained,
    usual_weights,
    with_further,
)
from metavib.data.arrays import random_domains
from metavib.data.transforms import Augmentation
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.evaluate import Evaluation
from metavib.experiment import Experiment
from metavib.functional.predictive import Predictive
from metavib.model import preprocessing_of
from metavib.optimization import Training
from metavib.plain_values import plain
from metavib.randomness import key_of, normal
from metavib.settings import Settings, changed, names_of, setting
from metavib.terminal import Bar

BATCH = 256  # samples that are predicted at a time


@dataclass(frozen=True)
class Own(Settings):
    """What the estimator decides beyond the package's settings."""

    hidden_width: int = setting(128, "width of the backbone of features", minimum=1)
    pseudo_domains: int = setting(3, "random domains where none are known", minimum=2)
    samples_per_domain: int = setting(32, "samples of each domain in an episode", minimum=1)


class Uncertainty(NamedTuple):
    """How unsure each answer is, in nats."""

    total: np.ndarray  # the entropy of the predicted probabilities
    model: np.ndarray  # the part of it that comes from disagreeing classifiers


class MetaVIBClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier for samples from domains that it has never seen.

    `X` holds features `[n, d]`, or images `[n, h, w]`, `[n, c, h, w]` or `[n, h, w, c]` of 1 or 3 channels, in
    bytes or in floats from 0 to 1. `domains` says where each sample comes from; two or more are needed.

    Parameters
    ----------
    algorithm : "metavib", "vib", "baseline", "erm" or any other that `metavib describe` names.
    backbone : "auto", "mlp" (for features), or a network for images ("digits", "squeezenet", "resnet18", ...).
        Auto is "mlp" for features, "digits" for grey images and "squeezenet" for colour.
    weights : "auto", "none", "imagenet" or a file; auto is ImageNet's where the image network has them.
    steps : episodes to train on.
    learning_rate : Adam's; it falls to zero along a cosine.
    beta : weight of the bottleneck (of metavib and vib).
    latent_width : width of both inference networks, of z and of psi.
    hidden_width : width of the "mlp" backbone.
    latent_draws, classifier_draws : draws of z for each sample and of psi, in training and in `uncertainty`.
    domains_per_episode : training domains in an episode, each of them meta-test in turn.
    samples_per_domain : samples of each domain in an episode.
    pseudo_domains : how many random domains stand for those that `fit` is not told.
    settings : further settings by name, as `metavib describe` lists them, such as {"clip_norm": 0, "flip": 0.5}.
    random_state : a number, a RandomState or None. It decides everything that is random.
    device : "auto", "cpu", "cuda" or, for images, "mps".
    verbose : whether progress is shown, on stderr.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn; n_features_in_ is X.shape[1].
    domains_ : the names of the training domains; of random ones, their numbers.
    n_iter_ : steps made.
    history_ : the step and each term of the loss, read about 100 times.
    experiment_ : all settings of the fit, as plain values.
    weights_ : the trained model, as plain arrays by name.
    """

    def __init__(
        self,
        *,
        algorithm: str = "metavib",
        backbone: str = "auto",
        weights: str = "auto",
        steps: int = 300,
        learning_rate: float = 2e-3,
        beta: float = 0.01,
        latent_width: int = 64,
        hidden_width: int = 128,
        latent_draws: int = 10,
        classifier_draws: int = 10,
        domains_per_episode: int = 3,
        samples_per_domain: int = 32,
        pseudo_domains: int = 3,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.backbone = backbone
        self.weights = weights
        self.steps = steps
        self.learning_rate = learning_rate
        self.beta = beta
        self.latent_width = latent_width
        self.hidden_width = hidden_width
        self.latent_draws = latent_draws
        self.classifier_draws = classifier_draws
        self.domains_per_episode = domains_per_episode
        self.samples_per_domain = samples_per_domain
        self.pseudo_domains = pseudo_domains
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, domains: ArrayLike | None = None) -> Self:
        """Train on samples with their classes and the domains that they come from.

        Without `domains`, the samples of each class are dealt out at random to `pseudo_domains` domains. That
        trains a classifier for more of the same data; it cannot learn what changes from one domain to another.
        """
        self._forget()
        samples, answers = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(answers)
        classes, labels = np.unique(answers, return_inverse=True)
        if len(classes) < 2:
            raise UserError(f"y has one class only, {classes.tolist()[0]!r}: a classifier takes two or more.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = changed(Own(), self._plain(*names_of(Own)), "estimator")
        names, numbers = _named(domains, labels, own.pseudo_domains, seed)
        experiment = self._experiment(samples, len(classes), own, seed)
        device = resolve_device(self.device)
        algorithm = untrained(experiment, samples, len(classes), own.hidden_width, device, len(names))
        with Bar(self.algorithm, experiment.training.steps) as bar:

            def show(step: int, terms: dict[str, float]) -> None:
                if self.verbose:
                    bar.update(step, "  ".join(f"{name} {value:.3f}" for name, value in terms.items()))

            history = train(experiment, algorithm, samples, labels, numbers, device, show)
        self.classes_, self.domains_, self.n_iter_ = classes, names, experiment.training.steps
        self.history_ = {name: np.array(values) for name, values in history.items()}
        self.sample_shape_ = samples.shape[1:]
        self.experiment_ = experiment.to_json()
        self.weights_ = arrays_of(algorithm)
        self._network = rebuilt(self.experiment_, self.weights_, len(classes), device, len(names))
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each sample."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probability of each class, in the order of `classes_`, with every distribution at its mean."""
        probabilities = np.concatenate([_numpy(some.probabilities()) for some, _ in self._predictive(X)])
        _require_finite(probabilities)
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def uncertainty(self, X: ArrayLike) -> Uncertainty:
        """How unsure each answer is: in total, and the model's part of it, by draws (zero for ERM)."""
        found = [
            (_numpy(at_mean.entropy()), _numpy(drawn().model_entropy()))
            for at_mean, drawn in self._predictive(X)
        ]
        total, model = (np.concatenate(parts) for parts in zip(*found, strict=True))
        _require_finite(total)
        return Uncertainty(total, np.minimum(model, total))

    def _forget(self) -> None:
        """An interrupted or refused fit leaves nothing of an earlier one behind."""
        for name in [name for name in vars(self) if name.endswith("_") or name == "_network"]:
            delattr(self, name)

    def _experiment(self, samples: np.ndarray, classes: int, own: Own, seed: int) -> Experiment:
        """The parameters as the package's own settings, checked."""
        backbone = backbone_for(samples, self.backbone)
        config = algorithm_named(self.algorithm).Config
        training = self._plain("steps", "learning_rate", "domains_per_episode")
        training["images_per_domain"] = own.samples_per_domain
        method = self._plain("beta", "latent_width", "latent_draws", "classifier_draws")
        method["roles"] = "every"  # one meta-test domain a step takes far longer to learn the same
        sections: dict[str, Settings] = {
            "training": changed(Training(selection="last"), training, "training"),
            "method": changed(config(), {n: v for n, v in method.items() if n in names_of(config)}, "method"),
            "augmentation": Augmentation(),
        }
        further = {} if self.settings is None else self.settings
        if not isinstance(further, Mapping):
            raise UserError(f"settings must hold names and values, not {plain(further)!r}.")
        sections = with_further(sections, further)
        if own.samples_per_domain < classes:
            raise UserError(
                f"samples_per_domain = {own.samples_per_domain} is fewer than the {classes} classes: raise it."
            )
        if backbone == FEATURES and sections["augmentation"] != Augmentation():
            raise UserError("features cannot be augmented: leave the settings of images out.")
        return Experiment(
            dataset="arrays",
            protocol="",
            target="",
            without=(),
            algorithm=self.algorithm,
            backbone=backbone,
            weights=usual_weights(backbone) if self.weights == "auto" else self.weights,
            seed=seed,
            preset="",
            evaluation=Evaluation(),
            **sections,  # type: ignore[arg-type]
        )

    def _plain(self, *names: str) -> dict[str, Any]:
        """Parameters by name; a grid of them has numpy's numbers in it."""
        values = {name: getattr(self, name) for name in names}
        return {name: plain(value) for name, value in values.items()}

    def _predictive(self, X: ArrayLike) -> Iterator[tuple[Predictive, Callable[[], Predictive]]]:
        """Answers at the mean, some at a time, and a way to have them by draws, which all samples see alike."""
        check_is_fitted(self)
        samples = validate_data(self, X, reset=False, allow_nd=True)
        if samples.shape[1:] != self.sample_shape_:
            raise UserError(
                f"X holds samples of shape {samples.shape[1:]}, and was {self.sample_shape_} in training."
            )
        network = self._loaded()
        some = next(network.parameters())
        noise = {
            purpose: normal(key_of(self.experiment_["seed"], "prediction", purpose), shape, some.device).to(
                some
            )
            for purpose, shape in network.prediction_noise_shapes(1).items()
        }
        preprocessing = preprocessing_of(network.backbone)
        with torch.no_grad():
            for start in range(0, len(samples), BATCH):
                pixels = torch.from_numpy(as_pixels(samples[start : start + BATCH], network.backbone))
                embedded = network.embed(preprocessing(pixels.to(some.device)))
                drawn = functools.partial(network.predictive, embedded, noise or None)
                yield network.predictive(embedded, None), drawn

    def _loaded(self) -> Algorithm:
        if not hasattr(self, "_network"):  # it was pickled
            device = resolve_device(self.device)
            sizes = len(self.classes_), device, len(self.domains_)
            self._network = rebuilt(self.experiment_, self.weights_, *sizes)
        return self._network

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, plain values and plain arrays: the network is built again from them."""
        return {name: value for name, value in super().__getstate__().items() if name != "_network"}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "weights_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _named(
    domains: ArrayLike | None, labels: np.ndarray, pseudo_domains: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The names of the domains, and the number of each sample's."""
    if domains is None:
        count = min(pseudo_domains, len(labels))
        return np.arange(count), random_domains(labels, count, seed)
    given = column_or_1d(domains)
    check_consistent_length(labels, given)
    if any(name is None or str(name) == "nan" for name in given.tolist()):
        raise UserError("domains must not be missing.")
    try:
        names, numbers = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise UserError("domains must all be text or all be numbers.") from error
    if len(names) < 2:
        raise UserError(
            f"all samples come from one domain, {names.tolist()[0]!r}: give two or more, or leave domains out."
        )
    return names, numbers


def _require_finite(answers: np.ndarray) -> None:
    """NaN is no answer, but argmax would name a class."""
    if not np.isfinite(answers).all():
        rows = np.flatnonzero(~np.isfinite(answers.reshape(len(answers), -1)).all(axis=1))
        raise UserError(
            f"the answers for {len(rows)} samples, the first at row {rows[0]}, are not finite: their values are "
            "too far from those of the training, or the weights were changed. Leave them out, or fit again."
        )


def _numpy(values: torch.Tensor) -> np.ndarray:
    return values.cpu().numpy().astype(np.float64)
