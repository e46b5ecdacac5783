from __future__ import annotations

import torch
from torch import nn

from metavib.algorithms.erm import ERM
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbones import DigitNetwork


def test_the_loss_is_the_cross_entropy_of_all_images_of_the_episode() -> None:
    torch.manual_seed(0)
    erm = ERM(DigitNetwork(), 3, ERM.Config())
    images, labels = torch.rand(3, 4, 1, 28, 28), torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1], [2, 0, 2, 1]])
    episode = Episode(
        Samples(images[1:], labels[1:], torch.tensor([1, 2])),
        Samples(images[:1], labels[:1], torch.tensor([0])),
    )
    logits = erm.backbone(images.flatten(0, 1)) @ erm.classifier.weight.T + erm.classifier.bias
    losses = erm.losses(episode, {})
    assert list(losses) == ["classification"]
    torch.testing.assert_close(
        losses["classification"], nn.functional.cross_entropy(logits, labels.flatten())
    )
    assert erm.noise_shapes(8, 4) == erm.prediction_noise_shapes(4) == {}


@torch.no_grad()
def test_the_prediction_is_the_softmax_of_the_same_logits() -> None:
    torch.manual_seed(0)
    erm = ERM(DigitNetwork(), 3, ERM.Config())
    features = erm.embed(torch.rand(4, 1, 28, 28))
    expected = (features @ erm.classifier.weight.T + erm.classifier.bias).softmax(dim=-1)
    torch.testing.assert_close(erm.predictive(features, None).probabilities(), expected)
