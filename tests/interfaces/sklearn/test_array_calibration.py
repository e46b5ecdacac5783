"""An estimator that knows what its answers are worth on a domain that it has not seen."""

import pickle

import numpy as np
import pytest

from metavib import MetaVIBClassifier
from metavib.core.errors import UserError
from metavib.interfaces.sklearn.array_calibration import kept_for_calibration


def samples(domains=3, each=150, seed=0):
    """Three classes that lie apart, moved a little from one domain to the next."""
    draw = np.random.default_rng(seed)
    centres = 4 * draw.normal(size=(3, 5))
    y = np.tile(np.arange(3), domains * each // 3)
    d = np.repeat(np.arange(domains), each)
    X = centres[y] + 0.5 * d[:, None] + draw.normal(size=(len(y), 5))
    return X, y, d


def fitted(algorithm="erm", **changes):
    X, y, d = samples()
    made = MetaVIBClassifier(algorithm=algorithm, steps=40, latent_width=8, random_state=0, **changes)
    return made.fit(X, y, domains=d)


@pytest.fixture(scope="module")
def calibrated():
    return fitted(calibrate=True)


def test_a_tenth_of_each_class_in_each_domain_is_kept_out():
    _, y, d = samples()
    kept = kept_for_calibration(y, d, 0)
    numbers = [int(kept[(d == domain) & (y == label)].sum()) for domain in range(3) for label in range(3)]
    assert numbers == [5] * 9
    assert (kept == kept_for_calibration(y, d, 0)).all()
    with pytest.raises(UserError, match="too few to calibrate"):
        kept_for_calibration(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), 0)


def test_it_says_which_answers_are_sure_and_which_samples_are_foreign(calibrated):
    X, y, _ = samples()
    assert set(calibrated.calibration_.left_out) == {"0", "1", "2"}
    probabilities = calibrated.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (calibrated.predict(X) == calibrated.classes_[probabilities.argmax(axis=1)]).all()
    assert calibrated.sure(X, coverage=1.0).mean() >= calibrated.sure(X, coverage=0.5).mean()
    sure = calibrated.sure(X, max_error=0.3)
    assert sure.any()
    assert (calibrated.predict(X)[sure] != y[sure]).sum() <= 0.3 * sure.sum()
    assert calibrated.foreign(1000 + X).all()
    assert not calibrated.foreign(X).all()
    sets = calibrated.predict_sets(X, 0.9)
    assert sets.shape == (len(X), 3)
    assert sets[np.arange(len(X)), probabilities.argmax(axis=1)].all()
    total, model = calibrated.uncertainty(X)
    assert (model <= total).all()


def test_it_lasts_through_a_pickle(calibrated):
    X, _, _ = samples()
    again = pickle.loads(pickle.dumps(calibrated))  # noqa: S301
    np.testing.assert_array_equal(again.predict_proba(X), calibrated.predict_proba(X))
    assert again.calibration_ == calibrated.calibration_


def test_without_it_nothing_is_promised():
    X, y, _ = samples()
    plain = fitted()
    assert plain.calibration_ is None
    for ask in (plain.sure, plain.foreign, plain.predict_sets):
        with pytest.raises(UserError, match="calibrate=True"):
            ask(X)
    with pytest.raises(UserError, match="needs domains"):
        MetaVIBClassifier(calibrate=True).fit(X, y)


def test_metavib_is_calibrated_too():
    assert len(fitted("metavib", calibrate=True).calibration_.left_out) == 3
