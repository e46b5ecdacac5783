from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import pytest
import torch
from small_episodes import (
    CLASSES,
    DOMAINS,
    built,
    episode_of,
    erm_with_the_weights_of,
    gradients,
    moved_by,
    numeric_gradient,
)
from torch import Tensor, nn

from metavib.algorithms.d_sam import DSAM
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbone import PIXELS, Staged
from metavib.nn.networks import build_backbone

WIDTH = 5


@final
class Two(Staged):
    """Maps of 2 x 2, units and features, with derivatives everywhere."""

    feature_size = 4
    stage_sizes = (2, 3)
    image_size = 3
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(1, 2, 2), nn.Linear(8, 3), nn.Linear(3, 4)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        maps = self.first(images).tanh()
        yield maps
        units = self.second(maps.flatten(1)).tanh()
        yield units
        yield self.third(units).tanh()


def d_sam(*, domains: int = DOMAINS, **settings: Any) -> DSAM:
    torch.manual_seed(0)
    return DSAM(Two(), CLASSES, DSAM.Config(**{"width": WIDTH} | settings), domains=domains).double()


def logits_of(algorithm: DSAM, domain: int, images: Tensor) -> Tensor:
    """By one module, literally."""
    maps, units, features = algorithm.backbone.at_stages(images)
    modules = algorithm.aggregation
    first = torch.cat([maps.mean(dim=(2, 3)), units], dim=1) @ modules.nodes[0][domain]
    first = (first + modules.biases[0][domain]).relu()
    second = torch.cat([first, features], dim=1) @ modules.nodes[1][domain]
    second = (second + modules.biases[1][domain]).relu()
    return second @ modules.classifiers.weight[domain].T + modules.classifiers.bias[domain]


@pytest.mark.parametrize("domains", [(1, 2, 0), (2, 0)])
def test_the_loss_is_that_of_each_domains_own_module(domains: tuple[int, ...]) -> None:
    algorithm, episode = d_sam(), episode_of(domains)
    samples = episode.all_domains()
    expected = [
        nn.functional.cross_entropy(
            logits_of(algorithm, domain, samples.images[place]), samples.labels[place]
        )
        for place, domain in enumerate(domains)
    ]
    terms = algorithm.losses(episode, {})
    assert list(terms) == ["classification"]
    torch.testing.assert_close(terms["classification"], torch.stack(expected).mean())


def test_an_unseen_domain_gets_the_mean_of_all_modules() -> None:
    algorithm, images = d_sam(), episode_of().meta_test.flat_images()
    with torch.no_grad():
        found = algorithm.predictive(algorithm.embed(images), None).log_probabilities[0, 0]
        logits = [logits_of(algorithm, domain, images) for domain in range(DOMAINS)]
        expected = torch.stack(logits).mean(dim=0).log_softmax(dim=-1)
    torch.testing.assert_close(found, expected)


def test_a_module_learns_from_its_own_domain_and_the_backbone_from_all() -> None:
    algorithm, episode = d_sam(), episode_of((1, 2))
    before = gradients(algorithm, algorithm.losses(episode, {})["classification"])
    other = Episode(episode.meta_train, episode_of((1, 2), seed=1).meta_test)  # domain 2 has other images
    after = gradients(algorithm, algorithm.losses(other, {})["classification"])
    for name, gradient in before.items():
        if name.startswith("aggregation."):
            assert (gradient[0] == 0).all()  # the episode lacks domain 0
            assert torch.equal(gradient[1], after[name][1])
            assert gradient[1].abs().max() > 0
            assert not torch.equal(gradient[2], after[name][2])
        else:
            assert not torch.equal(gradient, after[name])


def test_the_gradients_equal_finite_differences() -> None:
    algorithm, episode = d_sam(), episode_of()

    def value() -> Tensor:
        return algorithm.losses(episode, {})["classification"]

    found = gradients(algorithm, value())
    assert moved_by(algorithm, value()) == set(dict(algorithm.named_parameters()))
    for name, parameter in algorithm.named_parameters():
        expected = numeric_gradient(value, parameter.data)
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-8)


def test_modules_alike_on_the_features_alone_are_erm() -> None:
    """Without stages a module is a linear classifier; where all are the same, loss and gradients are ERM's."""
    algorithm, episode = built(DSAM, stages=0), episode_of()
    classifiers = algorithm.aggregation.classifiers
    with torch.no_grad():
        for values in (classifiers.weight, classifiers.bias):
            values.copy_(values[:1].expand_as(values))
    like_erm = nn.Module()
    like_erm.backbone, like_erm.classifier = algorithm.backbone, nn.Linear(4, CLASSES).double()
    like_erm.classifier.load_state_dict({"weight": classifiers.weight[0], "bias": classifiers.bias[0]})
    erm = erm_with_the_weights_of(like_erm)
    own, expected = (one.losses(episode, {})["classification"] for one in (algorithm, erm))
    torch.testing.assert_close(own, expected, rtol=1e-12, atol=0)
    found = gradients(algorithm, own)
    for name, gradient in gradients(erm, expected).items():
        kind = name.removeprefix("classifier.")
        shared = name.startswith("backbone.")
        mine = found[name] if shared else found[f"aggregation.classifiers.{kind}"].sum(dim=0)
        torch.testing.assert_close(mine, gradient, rtol=1e-10, atol=1e-14)
    images = episode.meta_test.flat_images()
    answers = [one.predictive(one.embed(images), None).log_probabilities for one in (algorithm, erm)]
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize(("stages", "nodes"), [(0, 0), (1, 1), (2, 2), (8, 2)])
def test_so_many_of_the_last_stages_are_aggregated(stages: int, nodes: int) -> None:
    algorithm = d_sam(stages=stages)
    assert len(algorithm.aggregation.nodes) == nodes
    assert algorithm.losses(episode_of(), {})["classification"].isfinite()
    if stages == 1:
        assert algorithm.aggregation.nodes[0].shape == (DOMAINS, 3 + 4, WIDTH)


@pytest.mark.parametrize("name", ["digits-domainbed", "squeezenet", "resnet18"])
def test_modules_fit_the_stages_of_real_networks(name: str) -> None:
    backbone = build_backbone(name)
    side = 28 if backbone.channels == 1 else 64
    algorithm = DSAM(backbone, CLASSES, DSAM.Config(width=8), domains=DOMAINS)
    images = torch.rand(2, 2, backbone.channels, side, side, generator=torch.Generator().manual_seed(0))
    episode = Episode(
        *(Samples(images[i : i + 1], torch.tensor([[0, 2]]), torch.tensor([i])) for i in range(2))
    )
    loss = algorithm.losses(episode, {})["classification"]
    moved = moved_by(algorithm, loss)
    assert {name for name, _ in algorithm.aggregation.named_parameters(prefix="aggregation")} <= moved
    assert len(algorithm.aggregation.nodes) == len(backbone.stage_sizes)
    with torch.no_grad():
        assert algorithm.embed(images[0]).shape == (2, DOMAINS * 8)
