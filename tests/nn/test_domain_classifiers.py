from __future__ import annotations

import torch

from metavib.nn.domain_classifiers import DomainClassifiers


def test_each_domain_is_classified_by_its_own_weights() -> None:
    torch.manual_seed(0)
    classifiers = DomainClassifiers(4, 5, 3)
    features, domains = torch.randn(2, 6, 5), torch.tensor([3, 1])
    logits = classifiers.of(domains).logits(features)
    for place, domain in enumerate(domains.tolist()):
        expected = torch.nn.functional.linear(
            features[place], classifiers.weight[domain], classifiers.bias[domain]
        )
        torch.testing.assert_close(logits[place], expected)


def test_they_begin_as_linear_layers_of_torch_do() -> None:
    torch.manual_seed(0)
    classifiers = DomainClassifiers(50, 16, 30)
    for values in (classifiers.weight, classifiers.bias):
        assert values.abs().max() <= 0.25
        assert values.std().item() - 0.25 / 3**0.5 < 0.01
    assert DomainClassifiers(0, 5, 3).weight.shape == (0, 3, 5)


def test_what_is_stopped_gets_no_gradient() -> None:
    picked = DomainClassifiers(2, 5, 3).of(torch.tensor([0, 1]))
    assert picked.logits(torch.ones(2, 1, 5)).requires_grad
    assert not picked.stopped().logits(torch.ones(2, 1, 5)).requires_grad
