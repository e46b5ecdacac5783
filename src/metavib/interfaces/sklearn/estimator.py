"""MetaVIB as a scikit-learn classifier, for arrays of features or of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from metavib.algorithms import algorithm_named
from metavib.algorithms.base import Algorithm
from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.core.plain_values import plain
from metavib.core.settings import Settings, changed, names_of
from metavib.core.terminal import Bar
from metavib.data.transforms import Augmentation
from metavib.interfaces.sklearn.array_calibration import (
    across_domains,
    calibrated,
    kept_for_calibration,
    sets_of,
)
from metavib.interfaces.sklearn.array_training import (
    FEATURES,
    EstimatorSettings,
    arrays_of,
    as_pixels,
    backbone_for,
    named_domains,
    numpy_of,
    rebuilt,
    require_finite,
    train,
    untrained,
    with_further,
)
from metavib.models.directory import preprocessing_of
from metavib.models.domain_calibration import DomainCalibration, promise_coverage, promise_error
from metavib.models.look import Passed, embedded_with_look, place_of
from metavib.models.measuring import Evaluation, shared_noise
from metavib.nn.functional.predictive import Predictive, entropy
from metavib.nn.networks import default_weights
from metavib.nn.own_network import Given, own_network
from metavib.training.experiment import Experiment
from metavib.training.optimizer import Training
from metavib.training.stages import require_stages

BATCH = 256  # samples that are predicted at a time


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
    backbone : "auto", "mlp" (for features), or a network for images ("digits", "squeezenet", "timm:NAME",
        "torchvision:NAME", ...); or one of your own: a torch.nn.Module that gives features, what
        `metavib.Backbone.of` makes of one, a function that returns either, or its name "module:function".
        Auto is "mlp" for features, "digits" for grey images and "squeezenet" for colour.
    weights : "auto", "none", "imagenet", "pretrained" or a file; auto is what the network was published with.
    image_size : side that images are brought to, where it is not the network's own (timm's and torchvision's).
    steps : episodes to train on.
    learning_rate : Adam's; it falls to zero along a cosine.
    beta : weight of the bottleneck (of metavib and vib).
    latent_width : width of both inference networks, of z and of psi.
    hidden_width : width of the "mlp" backbone.
    latent_draws, classifier_draws : draws of z for each sample and of psi, in training and in `uncertainty`.
    domains_per_episode : training domains in an episode, each of them meta-test in turn.
    samples_per_domain : samples of each domain in an episode.
    pseudo_domains : how many random domains stand for those that `fit` is not told.
    calibrate : whether to calibrate across domains, by a tenth of the samples that training does not see: for
        honest probabilities on a new domain, `sure`, `foreign` and `predict_sets`.
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
    calibration_ : what was measured on left-out domains (with `calibrate`); None without.
    """

    def __init__(
        self,
        *,
        algorithm: str = "metavib",
        backbone: Given = "auto",
        weights: str = "auto",
        image_size: int | None = None,
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
        calibrate: bool = False,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.backbone = backbone
        self.weights = weights
        self.image_size = image_size
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
        self.calibrate = calibrate
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
        own = changed(EstimatorSettings(), self._plain(*names_of(EstimatorSettings)), "estimator")
        names, numbers = named_domains(domains, labels, own.pseudo_domains, seed)
        if self.calibrate and domains is None:
            raise UserError("calibrate=True needs domains: random ones say nothing about a new domain.")
        kept = kept_for_calibration(labels, numbers, seed) if self.calibrate else np.zeros(len(labels), bool)
        experiment = self._experiment(samples, len(classes), own, seed)
        device = resolve_device(self.device)
        algorithm = untrained(
            experiment,
            samples,
            len(classes),
            own.hidden_width,
            device,
            len(names),
            own_network(self.backbone),
        )
        with Bar(self.algorithm, experiment.training.steps) as bar:

            def show(step: int, terms: dict[str, float]) -> None:
                if self.verbose:
                    bar.update(step, "  ".join(f"{name} {value:.3f}" for name, value in terms.items()))

            seen = samples[~kept], labels[~kept], numbers[~kept]
            history = train(experiment, algorithm, *seen, device, show)
        self.classes_, self.domains_, self.n_iter_ = classes, names, experiment.training.steps
        self.history_ = {name: np.array(values) for name, values in history.items()}
        self.sample_shape_ = samples.shape[1:]
        self.experiment_ = experiment.to_json()
        self.weights_ = arrays_of(algorithm)
        self._network = rebuilt(
            self.experiment_, self.weights_, len(classes), device, len(names), own_network(self.backbone)
        )
        self.calibration_ = (
            calibrated(self._network, samples, labels, numbers, kept, names) if self.calibrate else None
        )
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each sample."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probability of each class, in the order of `classes_`, with every distribution at its mean."""
        return self._answers(X)[0]

    def uncertainty(self, X: ArrayLike) -> Uncertainty:
        """How unsure each answer is: in total, and the model's part of it, by draws (zero for ERM)."""
        found = [
            (numpy_of(at_mean.entropy()), numpy_of(drawn().model_entropy()))
            for at_mean, drawn, _ in self._predictive(X)
        ]
        total, model = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if getattr(self, "calibration_", None) is not None:
            total = numpy_of(entropy(torch.from_numpy(self.predict_proba(X))))
        require_finite(total)
        return Uncertainty(total, np.minimum(model, total))

    def sure(self, X: ArrayLike, *, max_error: float | None = None, coverage: float = 0.9) -> np.ndarray:
        """Which answers to take so that few are wrong, or so many are answered, on a new domain."""
        record = self._calibration()
        promise = (
            promise_coverage(record, coverage) if max_error is None else promise_error(record, max_error)
        )
        return self.predict_proba(X).max(axis=1) >= promise.threshold - 1e-6

    def foreign(self, X: ArrayLike) -> np.ndarray:
        """Which samples are farther from every class, or look more unusual, than those of left-out domains."""
        self._calibration()
        return self._answers(X)[1]

    def predict_sets(self, X: ArrayLike, share: float = 0.9) -> np.ndarray:
        """Which of `classes_` are in the set that holds the right one so often, as booleans."""
        return sets_of(self._calibration(), share, self.predict_proba(X))

    def _calibration(self) -> DomainCalibration:
        check_is_fitted(self)
        record: DomainCalibration | None = getattr(self, "calibration_", None)
        if record is None:
            raise UserError("this needs a calibration across domains: fit again with calibrate=True.")
        return record

    def _answers(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities, and which samples are foreign; none for an estimator that is not calibrated."""
        record = getattr(self, "calibration_", None)  # an older version pickled none
        found = [across_domains(record, some.probabilities(), own) for some, _, own in self._predictive(X)]
        probabilities, foreign = (np.concatenate(own) for own in zip(*found, strict=True))
        require_finite(probabilities)
        return probabilities / probabilities.sum(axis=1, keepdims=True), foreign

    def _forget(self) -> None:
        """An interrupted or refused fit leaves nothing of an earlier one behind."""
        for name in [name for name in vars(self) if name.endswith("_") or name == "_network"]:
            delattr(self, name)

    def _experiment(self, samples: np.ndarray, classes: int, own: EstimatorSettings, seed: int) -> Experiment:
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
        stages = sections["training"]
        assert isinstance(stages, Training)
        require_stages(stages, sections["method"], algorithm_named(self.algorithm))
        if own.samples_per_domain < min(2, classes):
            raise UserError(
                "samples_per_domain = 1 gives an episode one class, and nothing to tell it from: raise it."
            )
        if backbone == FEATURES and sections["augmentation"] != Augmentation():
            raise UserError("features cannot be augmented: leave the settings of images out.")
        weights = self.weights
        if weights == "auto":
            weights = "none" if backbone == FEATURES else default_weights(backbone)
        return Experiment(
            dataset="arrays",
            protocol="",
            target="",
            without=(),
            algorithm=self.algorithm,
            backbone=backbone,
            weights=weights,
            seed=seed,
            preset="",
            evaluation=Evaluation(),
            image_size=plain(self.image_size),
            **sections,  # type: ignore[arg-type]
        )

    def _plain(self, *names: str) -> dict[str, Any]:
        """Parameters by name; a grid of them has numpy's numbers in it."""
        values = {name: getattr(self, name) for name in names}
        return {name: plain(value) for name, value in values.items()}

    def _predictive(self, X: ArrayLike) -> Iterator[tuple[Predictive, Callable[[], Predictive], Passed]]:
        """Answers at the mean, some at a time, a way to have them by draws that all see alike, features."""
        check_is_fitted(self)
        samples = validate_data(self, X, reset=False, allow_nd=True)
        if samples.shape[1:] != self.sample_shape_:
            raise UserError(
                f"X holds samples of shape {samples.shape[1:]}, and was {self.sample_shape_} in training."
            )
        network = self._loaded()
        some = next(network.parameters())
        drawn = shared_noise(network, self.experiment_["seed"], some.device) or {}
        noise = {purpose: values.to(some) for purpose, values in drawn.items()}
        preprocessing = preprocessing_of(network.backbone)
        place = place_of(getattr(getattr(self, "calibration_", None), "look", None))
        with torch.no_grad():
            for start in range(0, len(samples), BATCH):
                pixels = torch.from_numpy(as_pixels(samples[start : start + BATCH], network.backbone))
                passed = embedded_with_look(network, preprocessing(pixels.to(some.device)), place)
                by_draws = functools.partial(network.predictive, passed[0], noise or None)
                yield network.predictive(passed[0], None), by_draws, passed

    def _loaded(self) -> Algorithm:
        if not hasattr(self, "_network"):  # it was pickled
            device = resolve_device(self.device)
            sizes = len(self.classes_), device, len(self.domains_), own_network(self.backbone)
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
