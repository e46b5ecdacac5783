from __future__ import annotations

from typing import Any

import pytest
import torch
from small_episodes import DOMAINS, assert_is_erm, built, episode_of, gradients, moved_by, numeric_gradient
from torch import Tensor, nn

from benchmarks.workloads import digit_runs
from metavib.algorithms.dsn import DSN
from metavib.algorithms.mmd_aae import MMDAAE
from metavib.algorithms.mtae import MTAE, moved_at, same_class
from metavib.data.episodes import Episode, Samples
from metavib.data.sources import rotated
from metavib.nn.backbones import SqueezeNet
from metavib.training.step import Program

CLASSIFIER = {"classifier.weight", "classifier.bias"}
BACKBONE = {"backbone.layer.weight", "backbone.layer.bias"}
DECODERS = {f"decoders.{layer}_{kind}" for layer in ("hidden", "output") for kind in ("weight", "bias")}


def mtae(**settings: Any) -> Any:
    algorithm = built(MTAE, **{"phase_one": 0.0, "reconstruction_weight": 0.5, "decoder_width": 5} | settings)
    algorithm.decoders.hidden_bias.data += 1.0  # ReLU away from its edge, for finite differences
    algorithm.decoders.output_weight.data *= 100.0
    return algorithm


def test_the_same_class_is_looked_for_in_the_same_place_first_then_in_the_next_ones() -> None:
    places, known = same_class(torch.tensor([[0, 1, 2, 1], [1, 1, 0, 2]]))
    assert places[0, 0].tolist() == places[1, 1].tolist() == [0, 1, 2, 3]  # an image is itself
    assert places[1, 0].tolist() == [2, 1, 3, 0]  # the first follows the last
    assert places[0, 1].tolist() == [1, 1, 0, 2]
    assert known.all()


def test_a_class_that_a_domain_lacks_is_known_to_be_lacking() -> None:
    _, known = same_class(torch.tensor([[0, 0], [0, 3]]))
    assert known.tolist() == [[[True, True], [True, False]], [[True, True], [True, True]]]


def test_features_are_the_same_and_move_by_the_weight() -> None:
    features = torch.randn(4, 3, requires_grad=True)
    for weight in (0.0, 0.25, 1.0):
        found = moved_at(features, torch.tensor(weight))
        torch.testing.assert_close(found, features)
        (slope,) = torch.autograd.grad(found.sum(), features)
        torch.testing.assert_close(slope, torch.full((4, 3), weight))


@pytest.mark.parametrize("domains", [(1, 2, 0), (2, 0)])
def test_the_terms_equal_a_literal_loop_over_pairs_of_domains(domains: tuple[int, ...]) -> None:
    algorithm, episode = mtae(), episode_of(domains)
    samples = episode.all_domains()
    errors: list[Tensor] = []
    for i in range(len(domains)):
        for j, decoder in enumerate(domains):
            drawn = algorithm.decoders(torch.tensor([decoder]), algorithm.backbone(samples.images[i]))[0]
            for n, label in enumerate(samples.labels[i].tolist()):
                own = samples.labels[j].tolist()
                if label in own:
                    order = [*range(n, len(own)), *range(n)]
                    m = next(place for place in order if own[place] == label)
                    mean = samples.images[j].flatten(1).mean(dim=0)
                    errors.append((mean + drawn[n] - samples.images[j, m].flatten()).square().sum())
    spread = sum(own.flatten(1).var(dim=0, correction=0).sum() for own in samples.images) / len(domains)
    terms = algorithm.losses(episode, {})
    assert list(terms) == ["classification", "reconstruction"]
    assert len(errors) > len(domains) * samples.labels.shape[1]
    torch.testing.assert_close(terms["reconstruction"], torch.stack(errors).mean() / spread)
    logits = algorithm.classifier(algorithm.backbone(samples.flat_images()))
    torch.testing.assert_close(
        terms["classification"], nn.functional.cross_entropy(logits, samples.flat_labels())
    )


def test_decoders_that_draw_the_object_in_their_domain_make_no_error() -> None:
    algorithm, episode = mtae(), episode_of()
    samples = episode.all_domains()
    alike = samples._replace(
        images=samples.images[:, :1].expand_as(samples.images), labels=torch.zeros_like(samples.labels)
    )
    with torch.no_grad():  # one image in each domain, which is the mean image too
        algorithm.decoders.output_weight.zero_()
        algorithm.decoders.output_bias.zero_()
    meta_train = type(alike)(*(values[:-1] for values in alike))
    meta_test = type(alike)(*(values[-1:] for values in alike))
    assert algorithm.losses(type(episode)(meta_train, meta_test), {})["reconstruction"] < 1e-20
    assert algorithm.losses(episode, {})["reconstruction"] > 0.1
    assert built(MTAE).decoders.output_weight.abs().max() <= 0.01 * 256**-0.5  # they begin near there


@pytest.mark.parametrize(("progress", "first"), [(0.0, True), (0.29, True), (0.3, False), (0.9, False)])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_features_learn_by_reconstruction_first_and_by_the_classifier_then(
    progress: float, first: bool, weight: float
) -> None:
    algorithm = mtae(phase_one=0.3, reconstruction_weight=weight)
    algorithm.progress.fill_(progress)
    terms = algorithm.losses(episode_of(), {})
    assert moved_by(algorithm, terms["classification"]) == CLASSIFIER | (set() if first else BACKBONE)
    assert moved_by(algorithm, terms["reconstruction"]) == DECODERS | (
        BACKBONE if first or weight > 0 else set()
    )


def test_the_weight_is_that_of_the_features_alone() -> None:
    episode = episode_of()
    half, whole = (
        gradients(own, own.losses(episode, {})["reconstruction"])
        for own in (mtae(), mtae(reconstruction_weight=1.0))
    )
    for name in BACKBONE:
        torch.testing.assert_close(half[name], 0.5 * whole[name])
    for name in DECODERS:
        torch.testing.assert_close(half[name], whole[name])


def test_the_gradients_equal_finite_differences() -> None:
    algorithm, episode = mtae(reconstruction_weight=1.0), episode_of()
    found = gradients(algorithm, algorithm.losses(episode, {})["reconstruction"])
    for name in ("backbone.layer.weight", "decoders.hidden_weight", "decoders.output_bias"):
        parameter = algorithm.get_parameter(name)
        numeric = numeric_gradient(lambda: algorithm.losses(episode, {})["reconstruction"], parameter.data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


def test_decoders_of_domains_that_the_episode_lacks_get_no_gradient() -> None:
    algorithm = built(MTAE, domains=DOMAINS + 1, phase_one=0.0)
    slope = gradients(algorithm, algorithm.losses(episode_of((3, 1, 0)), {})["reconstruction"])
    assert [own.abs().max().item() > 0 for own in slope["decoders.output_bias"]] == [True, True, False, True]


def test_without_phase_one_and_weight_network_and_gradients_are_those_of_erm() -> None:
    algorithm, episode = mtae(reconstruction_weight=0.0), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, {}), episode)


def test_its_episodes_on_rotated_digits_hold_the_same_digits_at_every_angle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rotated, "_PER_CLASS", 5)
    (run,) = digit_runs(1, "mtae", 12, torch.device("cpu"))
    sampler = Program([run]).sampler
    positions, domains = sampler._positions(3)
    per_domain = len(sampler.rows) // sampler.source_domains
    assert (positions[0] // per_domain).tolist() == [[domain] * 12 for domain in domains[0].tolist()]
    objects = positions[0] % per_domain
    assert (objects == objects[0]).all()
    places, known = same_class(sampler.draw(3).all_domains().labels)
    assert (places == torch.arange(12)).all()
    assert known.all()


@pytest.mark.parametrize("kind", [MTAE, DSN, MMDAAE])
def test_it_and_the_other_autoencoders_take_photographs(kind: Any) -> None:
    torch.manual_seed(0)
    domains = {"domains": 2} if kind.PER_DOMAIN else {}
    algorithm = kind(SqueezeNet(), 7, kind.Config(), **domains)
    images, labels = torch.randn(2, 2, 3, 224, 224), torch.tensor([[0, 1], [1, 2]])
    samples = [Samples(images[d : d + 1], labels[d : d + 1], torch.tensor([d])) for d in range(2)]
    noise = {name: torch.randn(shape) for name, shape in algorithm.noise_shapes(2, 2).items()}
    total = torch.stack(list(algorithm.losses(Episode(*samples), noise).values())).sum()
    assert all(own.isfinite().all() for own in gradients(algorithm, total).values())
    if kind.PER_DOMAIN:  # what is restored is small
        assert sum(own.numel() for own in algorithm.parameters()) < 6e6
