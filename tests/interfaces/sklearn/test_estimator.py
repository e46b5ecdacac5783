"""scikit-learn's contract, domains that shift, and what a fitted estimator is made of."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from scipy import ndimage
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from metavib import MetaVIBClassifier
from metavib.algorithms import ALGORITHMS
from metavib.core.errors import UserError
from metavib.training.optimizer import NonFiniteError
from metavib.training.step import Program

pytestmark = pytest.mark.whole

SMALL: dict[str, Any] = {"samples_per_domain": 16, "latent_draws": 3, "classifier_draws": 3, "device": "cpu"}
OF_IMAGES = ["jigen"]  # the algorithms that make no sense for features
EXPECTED_FAILURES: dict[str, str] = {}  # the check and why it must fail: features pass them all

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


@parametrize_with_checks(
    [MetaVIBClassifier(steps=12, learning_rate=1e-2, **SMALL)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def quick(**changes: Any) -> MetaVIBClassifier:
    return MetaVIBClassifier(**{"steps": 8, "latent_width": 8, "random_state": 0} | SMALL | changes)


@pytest.fixture(scope="module")
def shifted() -> Data:
    """Three classes in four domains.

    Half of the features tell the class. The others are shifted from domain to domain, and the last one tells the
    class in each domain in another way.
    """
    random = np.random.default_rng(0)
    centres = 3 * np.eye(3)
    samples, labels, domains = [], np.arange(60) % 3, []
    for number, domain in enumerate("abcd"):
        place = 3 * random.normal(size=3) + np.outer((labels + number) % 3, [0, 0, 3])
        samples.append(np.hstack([centres[labels], place]) + 0.6 * random.normal(size=(60, 6)))
        domains += [domain] * 60
    return np.concatenate(samples), np.tile(labels, 4), np.array(domains)


@pytest.fixture(scope="module")
def rotated() -> Data:
    """Digits 0 to 4 turned by four angles, as bytes [n, 8, 8]."""
    digits = load_digits()
    kept = digits.target < 5
    images, labels = digits.images[kept][:150], digits.target[kept][:150]
    turned = [ndimage.rotate(images, angle, axes=(2, 1), reshape=False, order=1) for angle in (0, 15, 30, 45)]
    pixels = np.rint(np.concatenate(turned).clip(0, 16) * 255 / 16).astype(np.uint8)
    return pixels, np.tile(labels, 4), np.repeat([0, 15, 30, 45], len(labels))


@pytest.fixture
def routed() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# --- what it learns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in OF_IMAGES])
def test_a_domain_that_was_never_seen_is_classified(shifted: Data, algorithm: str) -> None:
    samples, labels, domains = shifted
    unseen = domains == "d"
    model = MetaVIBClassifier(algorithm=algorithm, steps=150, random_state=0, **SMALL)
    model.fit(samples[~unseen], labels[~unseen], domains=domains[~unseen])
    assert model.score(samples[unseen], labels[unseen]) >= 0.7  # chance is 0.33
    assert list(model.domains_) == ["a", "b", "c"]


@pytest.mark.parametrize("algorithm", OF_IMAGES)
def test_what_takes_images_alone_says_so_of_features(shifted: Data, algorithm: str) -> None:
    with pytest.raises(UserError, match=f"{algorithm} .* images"):
        quick(algorithm=algorithm).fit(*shifted)


def test_images_of_an_angle_that_was_never_seen_are_classified(rotated: Data) -> None:
    images, labels, angles = rotated
    unseen = angles == 30
    model = MetaVIBClassifier(steps=100, random_state=0, **SMALL)
    model.fit(images[~unseen], labels[~unseen], domains=angles[~unseen])
    assert model.experiment_["backbone"] == "digits"
    assert model.score(images[unseen], labels[unseen]) >= 0.85  # chance is 0.2


def test_features_may_have_any_unit(shifted: Data) -> None:
    samples, labels, domains = shifted
    scaled = samples * [1e-6, 1, 1e3, 1, 1e6, 1] + [0, 1e6, 0, 0, 1e8, 0]
    usual, other = (quick().fit(given, labels, domains) for given in (samples, scaled))
    assert np.allclose(usual.predict_proba(samples), other.predict_proba(scaled), atol=1e-3)


# --- what decides a fit -----------------------------------------------------------------------------------


def test_the_random_state_decides_everything_and_torchs_generator_nothing(shifted: Data) -> None:
    answers = []
    for seed, generator in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(generator)
        before = torch.get_rng_state()
        model = pickle.loads(pickle.dumps(quick(random_state=seed).fit(*shifted)))  # noqa: S301
        answers.append(model.predict_proba(shifted[0]))
        assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2], atol=1e-3)


def test_without_domains_they_are_dealt_out_at_random(shifted: Data) -> None:
    samples, labels, _ = shifted
    model = quick(pseudo_domains=4).fit(samples, labels)
    assert list(model.domains_) == [0, 1, 2, 3]
    assert not np.allclose(
        quick().fit(*shifted).predict_proba(samples), model.predict_proba(samples), atol=1e-3
    )
    assert list(quick().fit([[0.0], [1.0]], [0, 1]).domains_) == [0, 1]  # no domain is empty


def test_parameters_become_checked_settings(shifted: Data) -> None:
    model = quick(beta=0.5, steps=np.int64(2), learning_rate=np.float64(0.1), settings={"clip_norm": 0.25})
    model.fit(*shifted)
    record = model.experiment_
    assert (record["method"]["beta"], record["method"]["latent_width"]) == (0.5, 8)
    assert {name: record["training"][name] for name in ("steps", "images_per_domain", "clip_norm")} == {
        "steps": 2,
        "images_per_domain": 16,
        "clip_norm": 0.25,
    }
    assert model.n_iter_ == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be"),
        ({"learning_rate": "fast"}, "learning_rate must be"),
        ({"beta": -1}, "beta must be"),
        ({"hidden_width": 0}, "hidden_width must be"),
        ({"pseudo_domains": 1}, "pseudo_domains must be"),
        ({"samples_per_domain": 1}, "samples_per_domain = 1 gives an episode one class"),
        ({"algorithm": "metavip"}, "did you mean 'metavib'"),
        ({"backbone": "digits"}, "use backbone='mlp'"),
        ({"device": "tpu"}, "it must be auto, cpu, cuda or mps"),
        ({"settings": {"clipnorm": 1}}, "did you mean 'clip_norm'"),
        ({"settings": {"flip": 0.5}}, "features cannot be augmented"),
        ({"settings": 3}, "settings must hold names and values"),
        ({"settings": {"average": "ema"}}, "average plays no part in a fit of arrays"),
        ({"samples_per_domain": 0}, "samples_per_domain must be"),
        ({"latent_width": 10**9}, "does not fit into memory: lower its widths"),
    ],
)
def test_bad_parameters_are_refused_by_fit(shifted: Data, changes: dict[str, Any], message: str) -> None:
    model = quick(**changes)
    with pytest.raises(UserError, match=message):
        model.fit(*shifted[:2])
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (["a"] * 240, "all samples come from one domain, 'a':"),
        (np.zeros(240), r"all samples come from one domain, 0\.0:"),
        (["a", "b"], "inconsistent numbers of samples"),
        (np.array(["a", 1] * 120, dtype=object), "all be text or all be numbers"),
        (np.zeros((240, 2)), "should be a 1d array"),
        ([0.0] * 239 + [np.nan], "domains must not be missing"),
    ],
)
def test_bad_domains_are_refused(shifted: Data, domains: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick().fit(*shifted[:2], domains=domains)


def test_training_that_breaks_down_is_an_error(shifted: Data) -> None:
    model = quick(learning_rate=1e30, settings={"clip_norm": 0})
    with pytest.raises(NonFiniteError, match="training broke down"):
        model.fit(*shifted)
    assert not hasattr(model, "weights_")


def test_ctrl_c_ends_a_fit_and_leaves_no_model(shifted: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quick().fit(*shifted)

    def interrupted(program: Program) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*shifted)
    with pytest.raises(NotFittedError):
        model.predict(shifted[0])


def test_progress_is_silent_unless_asked_for(shifted: Data, capfd: pytest.CaptureFixture[str]) -> None:
    quick().fit(*shifted)
    assert capfd.readouterr() == ("", "")
    quick(verbose=True).fit(*shifted)
    out, err = capfd.readouterr()
    assert out == ""
    assert "metavib 8/8" in err
    assert "classification" in err


# --- what a fitted estimator says and is ------------------------------------------------------------------


def test_the_history_has_every_term(shifted: Data) -> None:
    history = quick(steps=202).fit(*shifted).history_
    assert history.keys() == {"step", "classification", "bottleneck"}
    assert list(history["step"][:2]) == [2, 4]
    assert history["step"][-1] == 202
    assert history["classification"][-5:].mean() < 0.5 * history["classification"][:5].mean()


def test_uncertainty_has_a_total_and_a_part_of_the_model(shifted: Data) -> None:
    samples = shifted[0]
    model = quick().fit(*shifted)
    total, part = model.uncertainty(samples)
    probabilities = model.predict_proba(samples)
    assert np.allclose(total, -(probabilities * np.log(probabilities)).sum(axis=1))
    assert (part >= 0).all()
    assert (part <= total).all()
    assert part.max() > 1e-3
    certain = quick(algorithm="erm").fit(*shifted)
    assert certain.uncertainty(samples).model.max() < 1e-12


def test_a_pickle_holds_plain_arrays_and_answers_the_same(shifted: Data) -> None:
    samples = shifted[0]
    model = quick().fit(*shifted)
    content = pickle.dumps(model)
    assert b"torch" not in content
    assert all(type(values) is np.ndarray for values in model.weights_.values())
    for other in (pickle.loads(content), copy.deepcopy(model)):  # noqa: S301  # our own
        assert other.get_params() == model.get_params()
        assert np.array_equal(other.predict_proba(samples), model.predict_proba(samples))
    model.set_params(latent_width=99)  # what was trained stays what it is
    assert np.array_equal(
        pickle.loads(pickle.dumps(model)).predict(samples),  # noqa: S301
        model.predict(samples),
    )


def test_a_clone_is_not_fitted(shifted: Data) -> None:
    model = quick(beta=0.2).fit(*shifted)
    other = clone(model)
    assert other.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        other.predict(shifted[0])


# --- images -----------------------------------------------------------------------------------------------


def test_layouts_and_types_of_images_make_no_difference(rotated: Data) -> None:
    images, labels, angles = (values[::10] for values in rotated)
    expected = quick().fit(images, labels, angles).predict_proba(images)
    for same in (images[:, None], images[..., None], images.astype(np.int64)):
        assert np.array_equal(quick().fit(same, labels, angles).predict_proba(same), expected)
    # Bytes are rounded once more when images are resized; a fit would make more of it than an answer does.
    model = quick().fit(images / 255, labels, angles)
    assert np.allclose(model.predict_proba(images / 255), model.predict_proba(images), atol=0.02)


def test_an_answer_does_not_depend_on_the_images_beside_it(rotated: Data) -> None:
    images, labels, angles = rotated
    model = quick().fit(images, labels, angles)
    everything = model.predict_proba(images)
    assert np.allclose(everything.sum(axis=1), 1)
    assert np.allclose(model.predict_proba(images[300:303]), everything[300:303], atol=1e-5)


def test_images_in_colour_have_a_network_of_their_own() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 10, 12, 3), dtype=np.uint8)
    model = quick(steps=1, samples_per_domain=2, weights="none", settings={"flip": 0.5})
    model.fit(images, [0, 1] * 3, domains=[0, 0, 1, 1, 2, 2])
    assert (model.experiment_["backbone"], model.experiment_["augmentation"]["flip"]) == ("squeezenet", 0.5)
    assert model.predict(images).shape == (6,)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((4, 6, 6), 2.0), "floats in images take 0 to 1"),
        (np.zeros((4, 5, 6, 6)), "it takes features"),
        (np.zeros((4, 1, 6, 6, 6)), "it takes features"),
    ],
)
def test_bad_images_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        quick().fit(images, [0, 1, 0, 1])


def test_images_of_another_size_are_refused(rotated: Data) -> None:
    images, labels, angles = (values[::30] for values in rotated)
    model = quick().fit(images, labels, angles)
    with pytest.raises(UserError, match=r"samples of shape \(8, 7\), and was \(8, 8\) in training"):
        model.predict(images[:, :, :7])


# --- in scikit-learn's company ----------------------------------------------------------------------------


def test_leaving_one_domain_out_with_routing(shifted: Data, routed: None) -> None:
    samples, labels, domains = shifted
    model = quick(steps=30, learning_rate=1e-2).set_fit_request(domains="groups")
    scores = cross_val_score(model, samples, labels, cv=LeaveOneGroupOut(), params={"groups": domains})
    assert scores.shape == (4,)
    assert scores.mean() > 0.7


def test_a_pipeline_in_a_grid_passes_domains_on(shifted: Data, routed: None) -> None:
    samples, labels, domains = shifted
    pipeline = make_pipeline(MinMaxScaler(), quick().set_fit_request(domains=True))
    grid = {"metavibclassifier__beta": np.array([0.001, 0.1]), "metavibclassifier__steps": np.array([2])}
    search = GridSearchCV(pipeline, grid, cv=LeaveOneGroupOut())
    search.fit(samples, labels, domains=domains, groups=domains)
    assert list(search.best_estimator_[-1].domains_) == ["a", "b", "c", "d"]
    assert search.best_params_["metavibclassifier__beta"] in (0.001, 0.1)


def test_a_pipeline_passes_domains_on_without_routing(shifted: Data) -> None:
    samples, labels, domains = shifted
    pipeline = make_pipeline(MinMaxScaler(), quick())
    pipeline.fit(samples, labels, metavibclassifier__domains=domains)
    assert list(pipeline[-1].domains_) == ["a", "b", "c", "d"]
    assert pipeline.predict(samples).shape == labels.shape


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_features_of_any_size_get_answers_of_their_own(size):
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    features = (random.normal(size=(60, 3)) + 3 * labels[:, None]) * size
    fitted = MetaVIBClassifier(steps=30, random_state=0).fit(features, labels, np.arange(60) % 3)
    assert len(np.unique(fitted.predict_proba(features))) > 10  # all others are saturated
    assert fitted.score(features, labels) > 0.8


def test_answers_that_are_not_finite_are_an_error_and_no_class():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(30, 3)), np.arange(30) % 2
    fitted = MetaVIBClassifier(steps=3, random_state=0).fit(features, labels, np.arange(30) % 3)
    far = np.where(np.arange(30)[:, None] == 7, 1e308, features)
    for ask in (fitted.predict, fitted.predict_proba, fitted.uncertainty):
        with pytest.raises(UserError, match="the first at row 7, are not finite"):
            ask(far)


def test_more_classes_than_samples_of_a_domain_are_learnt() -> None:
    random = np.random.default_rng(0)
    labels, domains = np.tile(np.repeat(np.arange(65), 4), 3), np.repeat(np.arange(3), 65 * 4)
    samples = random.standard_normal((65, 24))[labels] + 0.3 * random.standard_normal((len(labels), 24))
    model = quick(steps=150, learning_rate=1e-2, latent_width=32).fit(samples, labels, domains=domains)
    assert model.score(samples, labels) > 0.4  # chance is 0.015
