from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from metavib.algorithms import ALGORITHMS
from metavib.models import fold_answers
from metavib.models.fold_answers import fold_head, own_answers
from metavib.nn.functional.predictive import entropy
from tests.models.test_measuring_measures import built

FEATURES = torch.randn(60, 128, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_head_without_a_domain(name: str) -> None:
    algorithm = built(name)
    size = algorithm.embed(torch.zeros(1, 1, 28, 28)).shape[1]
    features = torch.randn(60, size, generator=torch.Generator().manual_seed(0))
    before = own_answers(algorithm, features)
    with fold_head(algorithm, features, LABELS, features) as head:
        answers = head(features)
    torch.testing.assert_close(answers.exp().sum(1), torch.ones(60))
    torch.testing.assert_close(own_answers(algorithm, features), before)  # the model is as it was
    few = LABELS < 3
    with fold_head(algorithm, features[few], LABELS[few], features) as head:
        assert (head(features)[:, 3] == -torch.inf).all()


def test_the_linear_head_is_scikit_learns() -> None:
    features, labels = FEATURES[:, :5].double(), LABELS
    own = fold_answers._linear(features, labels, 4)(features).softmax(1)
    scaled = (features - features.mean(0)) / features.std(0).mean()
    oracle = LogisticRegression(C=1 / (fold_answers.DECAY * 60), tol=1e-8, max_iter=1000)
    expected = torch.from_numpy(oracle.fit(scaled.numpy(), labels.numpy()).predict_proba(scaled.numpy()))
    torch.testing.assert_close(own, expected, atol=2e-3, rtol=0)


def test_a_linear_head_is_as_sure_as_the_model() -> None:
    algorithm = built("erm")
    size = algorithm.backbone.feature_size
    features = torch.randn(60, size, generator=torch.Generator().manual_seed(1))
    with fold_head(algorithm, features, LABELS, features) as head:
        own, other = own_answers(algorithm, features), head(features)
    assert entropy(other.exp()).mean().item() == pytest.approx(entropy(own.exp()).mean().item(), abs=1e-3)
