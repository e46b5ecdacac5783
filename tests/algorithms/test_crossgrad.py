"""CrossGrad's own mathematics: how images are perturbed, and whom each term moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_twins import kernels_stand_in
from small_episodes import (
    CLASSES,
    DOMAINS,
    assert_is_erm,
    built,
    episode_of,
    erm_with_the_weights_of,
    gradients,
    moved_by,
    network_after_training,
    numeric_gradient,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.workloads import digit_runs
from metavib.algorithms.crossgrad import CrossGrad, perturbed
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbones import DigitNetwork, SqueezeNet
from metavib.nn.mlp import MLP
from metavib.training.step import Program

LABELS = {"backbone.layer.weight", "backbone.layer.bias", "classifier.weight", "classifier.bias"}
OF_DOMAINS = {
    *("domain_backbone.layer.weight", "domain_backbone.layer.bias"),
    *("domain_classifier.weight", "domain_classifier.bias"),
}
MOVES = {
    "classification": LABELS,
    "perturbed_classification": LABELS,
    "domains": OF_DOMAINS,
    "perturbed_domains": OF_DOMAINS,
}


def crossgrad(**settings: Any) -> Any:
    """A domain network that has become different from the label network."""
    algorithm = built(CrossGrad, **{"label_share": 0.25, "domain_share": 0.75} | settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in algorithm.domain_backbone.parameters():
            own.add_(torch.randn(own.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return algorithm


def test_the_perturbation_of_a_linear_classifier_is_the_closed_form() -> None:
    """The gradient of - log softmax(W x)[y] by x is W^T (softmax(W x) - e_y), of each image by itself."""
    torch.manual_seed(0)
    images, weight = (
        torch.randn(4, 1, 2, 3, dtype=torch.float64),
        torch.randn(CLASSES, 6, dtype=torch.float64),
    )
    labels = torch.tensor([0, 2, 1, 1])

    def loss(images: Tensor) -> Tensor:
        return nn.functional.cross_entropy(images.flatten(1) @ weight.T, labels)

    moved, value = perturbed(loss, images, 0.5, 1.0)
    errors = (images.flatten(1) @ weight.T).softmax(dim=-1) - torch.eye(CLASSES, dtype=torch.float64)[labels]
    torch.testing.assert_close(moved, images + 0.5 * (errors @ weight).view_as(images))
    assert value == loss(images)
    labels = labels[2:3]
    torch.testing.assert_close(perturbed(loss, images[2:3], 0.5, 1.0)[0], moved[2:3])


def test_inputs_with_a_scale_are_perturbed_in_its_units() -> None:
    torch.manual_seed(0)
    standard, scale = torch.randn(4, 5, 1, 1, dtype=torch.float64), torch.tensor([1e-6, 1e-2, 1.0, 30, 1e9])
    scale = scale.double().view(-1, 1, 1)

    def loss(standard: Tensor) -> Tensor:
        return (standard.flatten(1) ** 2).sum(dim=1).mean()

    usual, _ = perturbed(loss, standard, 0.1, 1.0)
    scaled, _ = perturbed(lambda images: loss(images / scale), standard * scale, 0.1, scale)
    torch.testing.assert_close(scaled / scale, usual)
    torch.testing.assert_close(usual, 1.2 * standard)  # the gradient of x^2 is 2 x


def test_the_terms_equal_a_literal_loop_over_images() -> None:
    algorithm, episode = crossgrad(label_step=0.7, domain_step=1.3), episode_of((0, 2, 1))
    samples = episode.all_domains()
    expected: dict[str, list[Tensor]] = {name: [] for name in MOVES}
    for place, domain in enumerate((0, 2, 1)):
        for image, label in zip(samples.images[place], samples.labels[place], strict=True):

            def label_loss(image: Tensor, label: Tensor = label) -> Tensor:
                logits = algorithm.classifier(algorithm.backbone(image[None]))
                return nn.functional.cross_entropy(logits, label[None])

            def domain_loss(image: Tensor, domain: int = domain) -> Tensor:
                logits = algorithm.domain_classifier(algorithm.domain_backbone(image[None]))
                return nn.functional.cross_entropy(logits, torch.tensor([domain]))

            image.requires_grad_()
            (by_label,) = torch.autograd.grad(label_loss(image), image)
            (by_domain,) = torch.autograd.grad(domain_loss(image), image)
            expected["classification"].append(0.75 * label_loss(image))
            expected["perturbed_classification"].append(0.25 * label_loss(image + 0.7 * by_domain))
            expected["domains"].append(0.25 * domain_loss(image))
            expected["perturbed_domains"].append(0.75 * domain_loss(image + 1.3 * by_label))
    terms = algorithm.losses(episode, {})
    assert list(terms) == list(MOVES)
    for name, values in expected.items():
        torch.testing.assert_close(terms[name], torch.stack(values).mean(), rtol=1e-6, atol=1e-8)


def test_without_a_share_of_perturbed_images_it_is_erm() -> None:
    algorithm, episode = crossgrad(label_share=0.0), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, {}), episode)


def test_with_a_step_of_zero_the_two_label_terms_are_erms_together() -> None:
    algorithm, episode = crossgrad(label_step=0.0), episode_of()
    terms, erm = algorithm.losses(episode, {}), erm_with_the_weights_of(algorithm)
    expected = erm.losses(episode, {})["classification"]
    torch.testing.assert_close(terms["classification"] + terms["perturbed_classification"], expected)
    found = gradients(algorithm, torch.stack(list(terms.values())).sum())
    for name, gradient in gradients(erm, expected).items():
        torch.testing.assert_close(found[name], gradient)


def test_without_a_share_of_perturbed_images_training_is_that_of_erm() -> None:
    """Also where gradients are clipped: the domain network is clipped by itself."""
    erm, own = network_after_training("erm"), network_after_training("crossgrad", label_share=0.0)
    assert erm.keys() == own.keys()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, erm[name], rtol=0, atol=1e-6)


def test_each_term_moves_only_the_network_that_it_is_for() -> None:
    algorithm = crossgrad()
    for name, term in algorithm.losses(episode_of(), {}).items():
        assert moved_by(algorithm, term) == MOVES[name], name


@pytest.mark.parametrize("kind", ["classification", "domains"])
def test_the_gradients_equal_finite_differences(kind: str) -> None:
    """Exactly, because a network's perturbed images depend on the other network alone."""
    algorithm, episode = crossgrad(), episode_of()

    def objective() -> Tensor:
        terms = algorithm.losses(episode, {})
        return terms[kind] + terms[f"perturbed_{kind}"]

    found = gradients(algorithm, objective())
    for name in MOVES[kind]:
        numeric = numeric_gradient(objective, algorithm.get_parameter(name).data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("term", "name"),
    [("perturbed_classification", "domain_classifier.weight"), ("perturbed_domains", "classifier.weight")],
)
def test_the_other_network_matters_and_gets_no_gradient(term: str, name: str) -> None:
    algorithm, episode = crossgrad(), episode_of()
    numeric = numeric_gradient(
        lambda: algorithm.losses(episode, {})[term], algorithm.get_parameter(name).data
    )
    assert numeric.abs().max() > 1e-4
    assert gradients(algorithm, algorithm.losses(episode, {})[term])[name].abs().max() == 0


def test_images_move_to_where_their_domain_or_their_label_is_harder_to_tell() -> None:
    """To first order a step of epsilon raises an image's loss by epsilon times the gradient's square."""
    algorithm, episode = crossgrad(), episode_of()
    samples = episode.all_domains()
    domains = samples.domains.repeat_interleave(samples.labels.shape[1])

    def domain_losses(images: Tensor) -> Tensor:
        logits = algorithm.domain_classifier(algorithm.domain_backbone(images))
        return nn.functional.cross_entropy(logits, domains, reduction="none")

    images = samples.flat_images()
    moved, _ = perturbed(lambda images: domain_losses(images).mean(), images, 1e-4, 1.0)
    rise = domain_losses(moved) - domain_losses(images)
    assert (rise > 0).all()
    slope = (moved - images).flatten(1) / 1e-4
    torch.testing.assert_close(rise / 1e-4, slope.square().sum(dim=1), rtol=1e-2, atol=1e-8)


def test_a_source_domain_that_the_episode_lacks_is_a_wrong_answer() -> None:
    algorithm = built(CrossGrad, domains=DOMAINS + 1, domain_share=0.0)
    term = algorithm.losses(episode_of((3, 1, 0)), {})["domains"]
    by_bias = gradients(algorithm, term)["domain_classifier.bias"]
    assert by_bias[2] > 0  # it is pushed down
    samples = episode_of((3, 1, 0)).all_domains()
    logits = algorithm.domain_classifier(algorithm.domain_backbone(samples.flat_images()))
    mean_probability = logits.softmax(dim=-1).mean(dim=0)
    torch.testing.assert_close(by_bias[2], mean_probability[2])


def test_the_domain_network_begins_as_the_backbone_and_learns_as_it_does() -> None:
    program = Program(digit_runs(1, "crossgrad", 2, torch.device("cpu")))
    algorithm = program.algorithms[0]
    assert isinstance(algorithm, CrossGrad)
    assert algorithm.domain_classifier.out_features == 5  # six angles, one of them unseen
    pairs = zip(algorithm.domain_backbone.parameters(), algorithm.backbone.parameters(), strict=True)
    assert all(torch.equal(own, first) for own, first in pairs)
    learns_as_backbone = {name.partition(".")[0] for name in program.optimizer.backbone}
    assert learns_as_backbone == {"backbone", "domain_backbone"}


def of_features(scale: Tensor) -> tuple[CrossGrad, Episode]:
    """Features in these units; the network is standardised once it stands, as in a fit."""
    torch.manual_seed(0)
    features = torch.randn(3, 5, 4, dtype=torch.float64) * scale
    labels = torch.randint(CLASSES, (3, 5))
    images = features[..., None, None]
    network = MLP(4, 8)
    algorithm = CrossGrad(network, CLASSES, CrossGrad.Config(), domains=DOMAINS).double()
    network.standardise_by(features.flatten(0, 1))
    numbers = torch.tensor([1, 2, 0])
    return algorithm, Episode(
        Samples(images[:2], labels[:2], numbers[:2]), Samples(images[2:], labels[2:], numbers[2:])
    )


def test_features_may_have_any_unit() -> None:
    usual, other = (
        algorithm.losses(episode, {})
        for algorithm, episode in map(of_features, (torch.ones(4), torch.tensor([1e-7, 1.0, 1e3, 1e9])))
    )
    for name, term in usual.items():
        torch.testing.assert_close(other[name], term, rtol=1e-6, atol=0)


def test_it_takes_photographs() -> None:
    torch.manual_seed(0)
    algorithm = CrossGrad(SqueezeNet(), 2, CrossGrad.Config(), domains=2)
    images, labels = torch.randn(2, 1, 3, 224, 224), torch.tensor([[0], [1]])
    episode = Episode(*(Samples(images[d : d + 1], labels[d : d + 1], torch.tensor([d])) for d in (0, 1)))
    terms = algorithm.losses(episode, {})
    torch.stack(list(terms.values())).sum().backward()
    assert all(own.grad is not None and own.grad.isfinite().all() for own in algorithm.parameters())


@pytest.mark.parametrize("stacked", [False, True])
def test_it_goes_through_layers_that_have_no_second_derivative(
    monkeypatch: pytest.MonkeyPatch, stacked: bool
) -> None:
    """Nor do those kernels have a gradient by the pixels of a digit: others take their place."""
    torch.manual_seed(0)
    algorithm = CrossGrad(DigitNetwork(), 3, CrossGrad.Config(label_step=5.0, domain_step=5.0), domains=2)
    images, labels = torch.rand(2, 6, 1, 28, 28), torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)
    episode = Episode(*(Samples(images[d : d + 1], labels[d : d + 1], torch.tensor([d])) for d in (0, 1)))

    def objective(parameters: dict[str, Tensor]) -> Tensor:
        return torch.stack(list(functional_call(algorithm, parameters, (episode, {})).values())).sum()

    def found() -> dict[str, Tensor]:
        if not stacked:
            return gradients(algorithm, objective({}))
        twice = {name: torch.stack([own.detach()] * 2) for name, own in algorithm.named_parameters()}
        return {name: own[1] for name, own in vmap(grad(objective))(twice).items()}

    expected = found()
    backward = kernels_stand_in(monkeypatch)
    for name, own in found().items():
        torch.testing.assert_close(own, expected[name], rtol=1e-4, atol=1e-6)
    # Of two networks: the second layer by pixels, then by parameters; both layers of the perturbed images.
    assert backward.call_count == 2 * (1 + 1 + 2)
