"""Readings of the paper and levers of ours: what each does at its limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_metavib import CLASSES, TEST, built, episode_of, losses_of

from metavib.algorithms.metavib import VIB, Baseline, MetaVIB


def bottleneck_of(kind: Any, *, updates: float = 0.0, **values: Any) -> float:
    algorithm = built(kind, **values)
    algorithm.updates.fill_(updates)
    return losses_of(algorithm, episode_of())["bottleneck"].item()


@pytest.mark.parametrize("kind", [VIB, MetaVIB])
def test_a_ramp_raises_the_weight_from_nothing_to_beta_and_no_further(kind: Any) -> None:
    whole = bottleneck_of(kind, beta=0.2)
    shares = [bottleneck_of(kind, beta=0.2, ramp=4, updates=done) / whole for done in (0, 1, 3, 4, 9)]
    assert shares == pytest.approx([0, 0.25, 0.75, 1, 1])
    assert bottleneck_of(kind, beta=0.2, ramp=0, updates=0) == whole


def test_at_the_first_step_of_a_ramp_the_method_is_its_baseline() -> None:
    ramped, baseline = built(MetaVIB, beta=0.3, ramp=5), built(Baseline)
    losses, plain = losses_of(ramped, episode_of()), losses_of(baseline, episode_of())
    torch.testing.assert_close(sum(losses.values()), sum(plain.values()))


@pytest.mark.parametrize("kind", [VIB, MetaVIB])
def test_the_mean_over_dimensions_is_the_sum_over_their_number(kind: Any) -> None:
    assert bottleneck_of(kind, kl_dimensions="mean") == pytest.approx(bottleneck_of(kind) / 4)
    narrow = {"latent_width": 1}
    assert bottleneck_of(kind, kl_dimensions="mean", **narrow) == bottleneck_of(kind, **narrow)


@pytest.mark.parametrize("roles", ["one", "every"])
def test_a_divergence_of_each_class_is_beta_over_its_samples(roles: str) -> None:
    # Two classes have two samples each, one has one, in turn of every role.
    by_class, every = (built(MetaVIB, kl_samples=own, roles=roles) for own in ("class", "every"))
    divergence, labels = torch.rand(*TEST.shape, dtype=torch.float64), TEST
    counts = torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    assert labels.tolist() == [[0, 1, 2, 2, 1]]
    torch.testing.assert_close(
        by_class.weighted(divergence, labels), every.weighted(divergence, labels) / counts
    )
    alone = torch.arange(CLASSES)
    torch.testing.assert_close(
        by_class.weighted(divergence[0, :3], alone), every.weighted(divergence[0, :3], alone)
    )


def test_a_scale_of_one_changes_nothing_and_a_scale_is_learnt() -> None:
    plain, scaled = built(), built(logit_scale=1.0)
    torch.testing.assert_close(losses_of(scaled, episode_of()), losses_of(plain, episode_of()))
    assert plain.log_scale is None
    terms = losses_of(scaled, episode_of())
    sum(terms.values()).backward()
    assert scaled.log_scale.grad != 0


@pytest.mark.parametrize("drawn", [False, True])
def test_a_scale_multiplies_psi_z_in_training_and_prediction_alike(*, drawn: bool) -> None:
    scaled, plain = built(logit_scale=3.0), built()
    means = torch.randn(CLASSES, 3, dtype=torch.float64)
    embedded = torch.randn(5, 3, dtype=torch.float64)
    logits = []
    for algorithm in (scaled, plain):
        algorithm.keep(means)
        shapes = algorithm.prediction_noise_shapes(1).items()
        generator = torch.Generator().manual_seed(1)
        noise = {p: torch.randn(s, dtype=torch.float64, generator=generator) for p, s in shapes}
        logits.append(algorithm.predictive(embedded, noise if drawn else None).log_probabilities)
    torch.testing.assert_close(logits[0], torch.log_softmax(3.0 * logits[1], dim=-1))


def test_networks_that_begin_as_the_identity_give_the_class_means_as_classifier() -> None:
    algorithm = built(inference="identity", logit_scale=2.0)
    means, embedded = (torch.randn(n, 3, dtype=torch.float64) for n in (CLASSES, 5))
    algorithm.keep(means)
    found = algorithm.predictive(embedded, None).log_probabilities[0, 0]
    wanted = torch.log_softmax(2.0 * embedded @ means.T, dim=-1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)  # the isometry was made in float32


def test_the_classifier_of_unit_class_means_is_the_nearest_class_mean() -> None:
    algorithm = built(inference="identity")
    means = torch.nn.functional.normalize(torch.randn(CLASSES, 3, dtype=torch.float64), dim=-1)
    embedded = torch.randn(20, 3, dtype=torch.float64)
    algorithm.keep(means)
    nearest = torch.cdist(embedded, means).argmin(dim=-1)
    assert torch.equal(algorithm.predictive(embedded, None).log_probabilities[0, 0].argmax(dim=-1), nearest)


def test_the_identity_begins_with_the_variance_that_is_set_for_every_feature() -> None:
    algorithm = built(inference="identity", initial_log_variance=-2.0)
    inferred = algorithm.infer_latent(torch.randn(4, 3, dtype=torch.float64))
    assert inferred.log_variance.unique().tolist() == [-2.0]


@pytest.mark.parametrize("roles", ["one", "every"])
def test_centred_features_begin_around_zero_and_what_all_images_share_plays_no_part(roles: str) -> None:
    centred, shifted = built(centred=True, roles=roles), built(centred=True, roles=roles)
    episode = episode_of()
    with torch.no_grad():
        forward = shifted.backbone.forward
        shifted.backbone.forward = lambda *given: forward(*given) + torch.tensor([5.0, -3.0, 0.5])
    for algorithm in (centred, shifted):
        algorithm.begin(episode)
    features = centred.features(episode.meta_train.flat_images())
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(3, dtype=torch.float64))
    assert features.detach().square().mean().item() == pytest.approx(1.0)
    torch.testing.assert_close(losses_of(shifted, episode), losses_of(centred, episode))


def test_features_of_a_centre_of_zero_are_as_without_one() -> None:
    centred, plain = built(centred=True), built()
    torch.testing.assert_close(losses_of(centred, episode_of()), losses_of(plain, episode_of()))
    assert (centred.FITTED, plain.FITTED) == (("feature_scale", "feature_centre"), ("feature_scale",))
    assert "feature_centre" not in plain.state_dict()  # models of earlier versions have none


def test_a_centre_is_measured_where_features_keep_their_size() -> None:
    algorithm = built(centred=True, feature_size=0.0)
    algorithm.begin(episode_of())
    images = episode_of().meta_train.flat_images()
    torch.testing.assert_close(
        algorithm.features(images), algorithm.backbone(images) - algorithm.backbone(images).mean(dim=0)
    )


@pytest.mark.parametrize("width", [4, 16, 200])
def test_codes_begin_as_long_as_their_features(width: int) -> None:
    from metavib.nn.inference import InferenceNetwork

    torch.manual_seed(0)
    network = InferenceNetwork(16, width, 0.0, identity=True)
    features = torch.randn(2_000, 16)
    sizes = network(features).mean.norm(dim=-1) / features.norm(dim=-1)
    if width >= 16:
        torch.testing.assert_close(sizes, torch.ones(2_000))
    else:
        assert math.sqrt(sizes.square().mean().item()) == pytest.approx(1, rel=0.05)
    torch.testing.assert_close(network.mean(features), network(features).mean)
