"""MLDG's own mathematics: limiting cases, and its gradient through the inner step."""

from __future__ import annotations

import pytest
import torch
from kernel_twins import kernels_stand_in
from small_episodes import built, episode_of, erm_with_the_weights_of, gradients, numeric_gradient
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from metavib.algorithms.mldg import MLDG
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbones import DigitNetwork


def total(mldg: MLDG, episode: Episode) -> Tensor:
    return torch.stack(list(mldg.losses(episode, {}).values())).sum()


def test_with_beta_zero_it_is_erm_on_the_meta_train_domains() -> None:
    mldg, episode = built(MLDG, meta_test_weight=0.0, inner_rate=0.3), episode_of()
    erm = erm_with_the_weights_of(mldg)
    # ERM's mean is over both roles: with the same domains in both, it is that of the meta-train domains.
    expected = erm.losses(Episode(episode.meta_train, episode.meta_train), {})["classification"]
    torch.testing.assert_close(total(mldg, episode), expected)
    for name, own in gradients(mldg, total(mldg, episode)).items():
        torch.testing.assert_close(own, gradients(erm, expected)[name])


def test_with_an_inner_rate_of_zero_it_is_the_sum_of_both_losses() -> None:
    mldg, episode = built(MLDG, meta_test_weight=0.7, inner_rate=0.0), episode_of()
    network = mldg.network()
    expected = mldg.cross_entropy(network, episode.meta_train) + 0.7 * mldg.cross_entropy(
        network, episode.meta_test
    )
    torch.testing.assert_close(total(mldg, episode), expected)


def test_the_meta_test_loss_is_that_after_a_step_of_gradient_descent_on_meta_train() -> None:
    mldg, episode = built(MLDG, meta_test_weight=1.0, inner_rate=0.3), episode_of()
    terms = mldg.losses(episode, {})
    erm = erm_with_the_weights_of(mldg)
    descent = torch.optim.SGD(erm.parameters(), lr=0.3)

    def mean_loss(images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(erm.classifier(erm.backbone(images)), labels)

    before = mean_loss(episode.meta_train.flat_images(), episode.meta_train.flat_labels())
    before.backward()
    descent.step()
    after = mean_loss(episode.meta_test.flat_images(), episode.meta_test.flat_labels())
    torch.testing.assert_close(terms["classification"], before)
    torch.testing.assert_close(terms["meta_test"], after)


def test_the_gradient_through_the_inner_step_agrees_with_finite_differences() -> None:
    mldg, episode = built(MLDG, meta_test_weight=0.7, inner_rate=0.5), episode_of()
    found = gradients(mldg, total(mldg, episode))
    for name, parameter in mldg.named_parameters():
        expected = numeric_gradient(lambda: total(mldg, episode), parameter)
        torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-8)


def test_to_first_order_the_meta_test_gradient_is_that_at_the_moved_parameters() -> None:
    mldg, episode = built(MLDG, meta_test_weight=1.0, inner_rate=0.5, second_order=False), episode_of()
    exact = built(MLDG, meta_test_weight=1.0, inner_rate=0.5)
    network = {name: value.detach() for name, value in mldg.network().items()}
    slope = grad(lambda own: mldg.cross_entropy(own, episode.meta_train))(network)
    moved = {name: own - 0.5 * slope[name] for name, own in network.items()}
    expected = grad(lambda own: mldg.cross_entropy(own, episode.meta_test))(moved)
    found = gradients(mldg, mldg.losses(episode, {})["meta_test"])
    through = gradients(exact, exact.losses(episode, {})["meta_test"])
    for name, own in found.items():
        torch.testing.assert_close(own, expected[name])
        assert not torch.allclose(own, through[name], rtol=1e-3)
    assert mldg.backbone.twice_differentiable is False
    assert exact.backbone.twice_differentiable is True


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("second_order", [False, True])
def test_it_goes_through_the_kernels_that_have_the_derivatives_it_needs(
    monkeypatch: pytest.MonkeyPatch, second_order: bool, stacked: bool
) -> None:
    """To first order through the fastest, which have no second derivative; else through the others."""
    torch.manual_seed(0)
    # The fastest kernels are for float32. How near second derivatives are there, the processor's rounding decides.
    dtype = torch.float64 if second_order else torch.float32
    mldg = MLDG(DigitNetwork(), 3, MLDG.Config(inner_rate=0.5, second_order=second_order)).to(dtype)
    images = torch.rand(3, 6, 1, 28, 28, dtype=dtype)
    labels = torch.tensor([[0, 1, 2, 0, 1, 2]] * 3)
    episode = Episode(
        Samples(images[1:], labels[1:], torch.tensor([1, 2])),
        Samples(images[:1], labels[:1], torch.tensor([0])),
    )

    def objective(parameters: dict[str, Tensor]) -> Tensor:
        return torch.stack(list(functional_call(mldg, parameters, (episode, {})).values())).sum()

    def found() -> dict[str, Tensor]:
        if not stacked:
            return gradients(mldg, total(mldg, episode))
        twice = {name: torch.stack([own.detach()] * 2) for name, own in mldg.named_parameters()}
        return {name: own[1] for name, own in vmap(grad(objective))(twice).items()}

    expected = found()
    backward = kernels_stand_in(monkeypatch)
    for name, own in found().items():
        near = {"rtol": 1e-9, "atol": 1e-11} if second_order else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(own, expected[name], **near)
    # Two layers, of the inner step and of both terms.
    assert backward.call_count == (0 if second_order else 6)
