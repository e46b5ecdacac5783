"""JiGen's own mathematics: the orders, the shuffling of tiles, and which images each loss sees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from small_episodes import (
    DOMAINS,
    IMAGES,
    assert_is_erm,
    built,
    episode_of,
    gradients,
    moved_by,
    network_after_training,
    numeric_gradient,
)
from torch import Tensor, nn

from metavib.algorithms.jigen import JiGen, distant_orders, rearranged
from metavib.core.errors import UserError
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbones import SqueezeNet
from metavib.nn.mlp import MLP

BATCH = DOMAINS * IMAGES
SHUFFLED = torch.arange(BATCH) % 3 == 0
ORDER = torch.linspace(-2, 2, BATCH, dtype=torch.float64)
NOISE = {"shuffled": torch.where(SHUFFLED, -9.0, 9.0).double(), "order": ORDER}  # every third one


# --- orders -----------------------------------------------------------------------------------------------


def test_the_orders_are_permutations_and_begin_with_the_right_one() -> None:
    orders = distant_orders(31)
    assert orders.shape == (31, 9)
    assert list(orders[0]) == list(range(9))
    assert len(np.unique(orders, axis=0)) == 31
    assert (np.sort(orders, axis=1) == np.arange(9)).all()


def test_any_two_orders_are_far_apart() -> None:
    orders = distant_orders(31)
    distances = np.array([(one != other).sum() for one, other in itertools.combinations(orders, 2)])
    assert distances.min() == 7
    assert (distances >= 8).mean() > 5 / 6
    # No more than nine can differ in all places, as the rows of a Latin square do.
    assert all((one != other).all() for one, other in itertools.combinations(orders[:9], 2))


def test_no_order_would_have_been_farther_from_those_before_it() -> None:
    everyone = np.array(list(itertools.permutations(range(9))), dtype=np.int8).T.copy()
    orders = distant_orders(31)
    least = np.full(everyone.shape[1], 9)
    for number, order in enumerate(orders):
        if number > 0:
            own = min((order != other).sum() for other in orders[:number])
            assert own == least.max()
        least = np.minimum(least, (everyone != order[:, None]).sum(axis=0))


def test_fewer_orders_are_the_first_of_more() -> None:
    assert np.array_equal(distant_orders(6), distant_orders(31)[:6])


# --- tiles ------------------------------------------------------------------------------------------------


def test_tiles_are_laid_out_in_the_order_that_is_given() -> None:
    image = torch.arange(9.0).view(1, 1, 3, 3)
    order = torch.tensor([[8, 0, 1, 2, 3, 4, 5, 6, 7]])
    expected = torch.tensor([[8.0, 0, 1], [2, 3, 4], [5, 6, 7]])
    assert torch.equal(rearranged(image, order)[0, 0], expected)


def test_a_tile_moves_as_a_whole() -> None:
    image = torch.arange(2 * 6 * 6.0).view(1, 2, 6, 6)
    order = torch.tensor([[3, 0, 1, 2, 4, 5, 6, 7, 8]])  # the first tile of the second row comes first
    moved = rearranged(image, order)
    assert torch.equal(moved[0, :, :2, :2], image[0, :, 2:4, :2])
    assert torch.equal(moved[0, :, :2, 2:4], image[0, :, :2, :2])
    assert torch.equal(moved[0, :, 4:], image[0, :, 4:])


@pytest.mark.parametrize("side", [3, 5, 27, 28, 224])
def test_the_inverse_order_restores_an_image_and_the_rest_of_the_grid_stays(side: int) -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, side, side)
    orders = torch.from_numpy(distant_orders(31)).long()[[0, 7, 19, 30]]
    moved = rearranged(images, orders)
    assert torch.equal(rearranged(moved, orders.argsort(dim=1)), images)
    assert torch.equal(moved[0], images[0])  # the right order
    assert all(not torch.equal(*pair) for pair in zip(moved[1:], images[1:], strict=True))
    assert torch.equal(moved.flatten(1).sort(dim=1).values, images.flatten(1).sort(dim=1).values)
    covered = side // 3 * 3
    assert side - covered == {3: 0, 5: 2, 27: 0, 28: 1, 224: 2}[side]
    for rest in (np.s_[..., covered:, :], np.s_[..., :, covered:]):
        assert torch.equal(moved[rest], images[rest])


# --- draws ------------------------------------------------------------------------------------------------


def test_the_share_says_how_many_images_are_shuffled() -> None:
    quantiles = torch.special.ndtri((torch.arange(100).double() + 0.5) / 100)
    for share, count in ((0.0, 0), (0.3, 30), (1.0, 100)):
        which = built(JiGen, shuffled_share=share).drawn_orders(quantiles, quantiles.flip(0))
        assert (which > 0).sum() == count


def test_all_orders_are_alike_often_and_the_rarest_draws_give_one_too() -> None:
    algorithm = built(JiGen, shuffled_share=1.0)
    quantiles = torch.special.ndtri((torch.arange(90).double() + 0.5) / 90)
    which = algorithm.drawn_orders(quantiles, quantiles)
    assert torch.bincount(which, minlength=31).tolist() == [0] + [3] * 30
    extreme = torch.tensor([-40.0, -6.66, 6.66, 40.0])  # in float32 the normal distribution has 1 at the last
    assert algorithm.drawn_orders(torch.zeros(4), extreme).tolist() == [1, 1, 30, 30]


# --- losses -----------------------------------------------------------------------------------------------


def test_without_shuffled_images_and_jigsaw_loss_it_is_erm() -> None:
    algorithm, episode = built(JiGen, shuffled_share=0.0, jigsaw_weight=0.0), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, NOISE), episode)


def test_without_shuffled_images_and_jigsaw_loss_training_is_that_of_erm() -> None:
    erm = network_after_training("erm")
    own = network_after_training("jigen", shuffled_share=0.0, jigsaw_weight=0.0)
    assert erm.keys() == own.keys()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, erm[name], rtol=0, atol=1e-6)


def test_the_terms_equal_a_literal_loop_over_images() -> None:
    algorithm, episode = built(JiGen, jigsaw_weight=0.7), episode_of()
    samples = episode.all_domains()
    classification: list[Tensor] = []
    jigsaw: list[Tensor] = []
    for number, (image, label) in enumerate(zip(samples.flat_images(), samples.flat_labels(), strict=True)):
        which = 0
        if SHUFFLED[number]:
            share = 0.5 * (1 + torch.erf(ORDER[number] / 2**0.5))
            which = 1 + int(share * 30)
        order = algorithm.orders[which]
        puzzle = image.flatten()[order].view(1, 1, 3, 3)  # a tile is a pixel here
        features = algorithm.backbone(puzzle)
        if which == 0:
            classification.append(nn.functional.cross_entropy(algorithm.classifier(features), label[None]))
        logits = algorithm.jigsaw_classifier(features)
        jigsaw.append(0.7 * nn.functional.cross_entropy(logits, torch.tensor([which])))
    terms = algorithm.losses(episode, NOISE)
    assert list(terms) == ["classification", "jigsaw"]
    assert len(classification) == BATCH - int(SHUFFLED.sum())
    torch.testing.assert_close(terms["classification"], torch.stack(classification).mean())
    torch.testing.assert_close(terms["jigsaw"], torch.stack(jigsaw).mean(), rtol=1e-6, atol=1e-8)


def test_labels_of_shuffled_images_play_no_part() -> None:
    algorithm, episode = built(JiGen), episode_of()
    samples = episode.all_domains()
    # One image of meta-test is shuffled alone: the first of them has number 10.
    noise = NOISE | {"shuffled": torch.where(torch.arange(BATCH) == 2 * IMAGES, -9.0, 9.0).double()}
    labels = episode.meta_test.labels.clone()
    labels[0, 0] = (labels[0, 0] + 1) % 3
    changed = Episode(episode.meta_train, episode.meta_test._replace(labels=labels))
    assert samples.labels[-1, 0] != labels[0, 0]
    assert algorithm.losses(changed, noise) == algorithm.losses(episode, noise)
    labels[0, 1] = (labels[0, 1] + 1) % 3
    assert (
        algorithm.losses(changed, noise)["classification"]
        != algorithm.losses(episode, noise)["classification"]
    )
    assert algorithm.losses(changed, noise)["jigsaw"] == algorithm.losses(episode, noise)["jigsaw"]


def test_where_all_images_are_shuffled_nothing_is_classified_and_all_stays_finite() -> None:
    algorithm = built(JiGen, shuffled_share=1.0)
    terms = algorithm.losses(episode_of(), NOISE)
    assert terms["classification"] == 0
    found = gradients(algorithm, torch.stack(list(terms.values())).sum())
    assert all(own.isfinite().all() for own in found.values())
    assert found["classifier.weight"].abs().max() == 0


def test_each_classifier_has_its_own_term_and_the_backbone_both() -> None:
    algorithm = built(JiGen)
    terms = algorithm.losses(episode_of(), NOISE)
    backbone = {"backbone.layer.weight", "backbone.layer.bias"}
    assert moved_by(algorithm, terms["classification"]) == backbone | {"classifier.weight", "classifier.bias"}
    jigsaw = {"jigsaw_classifier.weight", "jigsaw_classifier.bias"}
    assert moved_by(algorithm, terms["jigsaw"]) == backbone | jigsaw


@pytest.mark.parametrize("term", ["classification", "jigsaw"])
def test_the_gradients_equal_finite_differences(term: str) -> None:
    algorithm, episode = built(JiGen, permutations=4), episode_of()
    found = gradients(algorithm, algorithm.losses(episode, NOISE)[term])
    for name, parameter in algorithm.named_parameters():
        numeric = numeric_gradient(lambda: algorithm.losses(episode, NOISE)[term], parameter.data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


# --- what it takes ----------------------------------------------------------------------------------------


def test_the_orders_are_not_saved_and_there_are_as_many_as_asked_for() -> None:
    algorithm = built(JiGen, permutations=4)
    assert algorithm.jigsaw_classifier.out_features == len(algorithm.orders) == 5
    assert "orders" not in algorithm.state_dict()


def test_features_that_are_no_images_are_refused() -> None:
    with pytest.raises(UserError, match="tiles of images"):
        JiGen(MLP(4, 8), 2, JiGen.Config())


@pytest.mark.parametrize("settings", [{"shuffled_share": 1.5}, {"permutations": 0}, {"jigsaw_weight": -1}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        JiGen.Config(**settings)


def test_it_takes_photographs() -> None:
    torch.manual_seed(0)
    algorithm = JiGen(SqueezeNet(), 2, JiGen.Config())
    images, labels = torch.randn(2, 1, 3, 224, 224), torch.tensor([[0], [1]])
    episode = Episode(*(Samples(images[d : d + 1], labels[d : d + 1], torch.tensor([d])) for d in (0, 1)))
    noise = {"shuffled": torch.tensor([-9.0, 9.0]), "order": torch.zeros(2)}
    torch.stack(list(algorithm.losses(episode, noise).values())).sum().backward()
    assert all(own.grad is not None and own.grad.isfinite().all() for own in algorithm.parameters())
