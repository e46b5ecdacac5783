from __future__ import annotations

import math
from typing import Any, final

import pytest
import torch
from small_episodes import CLASSES, IMAGES, Smooth, built, episode_of, gradients, moved_by, numeric_gradient
from torch import Tensor, nn

from metavib.algorithms.erm import ERM
from metavib.algorithms.mmd_aae import MMDAAE, SQUARED_WIDTHS, laplace, pairwise_mmd, relative_error
from metavib.data.episodes import Episode
from metavib.nn.backbone import PIXELS, Backbone

WEIGHTS = {"reconstruction_weight": 0.5, "discrepancy_weight": 2.0, "prior_weight": 0.25}  # float32 has them
TERMS = ["classification", "reconstruction", "discrepancy", "prior", "discriminator"]
CODE = 3


def mmd_aae(**settings: Any) -> Any:
    algorithm = built(MMDAAE, **{"code_width": CODE, "auxiliary_width": 5} | WEIGHTS | settings)
    algorithm.decoder.hidden.bias.data += 1.0  # ReLU away from its edge, for finite differences
    return algorithm


def prior_noise(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"prior": torch.randn(3 * IMAGES, CODE, dtype=torch.float64, generator=generator)}


def part(algorithm: MMDAAE, *prefixes: str) -> set[str]:
    return {name for name, _ in algorithm.named_parameters() if name.startswith(prefixes)}


def test_laplace_draws_have_the_ranks_of_the_normal_ones() -> None:
    shares = torch.tensor([0.01, 0.2, 0.5, 0.8, 0.99], dtype=torch.float64)
    found = laplace(torch.special.ndtri(shares))
    lower = math.sqrt(0.5) * torch.log(2 * shares[:2])  # the inverse of exp(sqrt 2 x) / 2
    torch.testing.assert_close(found, torch.cat([lower, torch.zeros(1).double(), -lower.flip(0)]))


def test_laplace_draws_have_variance_one_and_heavy_tails_and_are_finite() -> None:
    shares = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    found = laplace(torch.special.ndtri(shares))
    assert found.mean().abs() < 1e-9
    assert found.square().mean().item() == pytest.approx(1.0, abs=1e-3)
    assert found.pow(4).mean().item() == pytest.approx(6.0, abs=0.05)  # 3 for a normal distribution
    edges = laplace(torch.tensor([-6.66, 0.0, 6.66]))  # the largest draws that there are
    assert edges.isfinite().all()
    assert edges[0] == -edges[2]


def test_the_error_is_a_share_of_the_features() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    assert relative_error(features, features) == 0
    assert relative_error(torch.zeros(2, 2), features) == 1
    assert relative_error(1.5 * features, features) == 0.25
    assert relative_error(torch.zeros(2, 2), torch.zeros(2, 2)) == 0


def test_the_terms_are_those_of_the_docstring() -> None:
    algorithm, episode, noise = mmd_aae(), episode_of(), prior_noise()
    samples = episode.all_domains()
    features = algorithm.backbone(samples.flat_images())
    codes = algorithm.encoder(features)
    assert torch.equal(algorithm.embed(samples.flat_images()), codes)
    fake, real = algorithm.discriminator(codes), algorithm.discriminator(laplace(noise["prior"]))
    restored = algorithm.decoder(codes)
    expected = {
        "classification": nn.functional.cross_entropy(algorithm.classifier(codes), samples.flat_labels()),
        "reconstruction": 0.5 * (restored - features).square().sum() / features.square().sum(),
        "discrepancy": 2.0 * pairwise_mmd(codes.view(3, IMAGES, CODE), SQUARED_WIDTHS).sum() / 9,
        "prior": -0.25 * fake.sigmoid().log().mean(),
        "discriminator": -0.5 * (real.sigmoid().log().mean() + (1 - fake.sigmoid()).log().mean()),
    }
    terms = algorithm.losses(episode, noise)
    assert list(terms) == TERMS
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value)


def test_each_term_moves_only_what_it_is_for() -> None:
    algorithm = mmd_aae()
    terms = algorithm.losses(episode_of(), prior_noise())
    encoding = part(algorithm, "backbone.", "encoder.")
    assert moved_by(algorithm, terms["classification"]) == encoding | part(algorithm, "classifier.")
    assert moved_by(algorithm, terms["reconstruction"]) == encoding | part(algorithm, "decoder.")
    shift = {"encoder.bias"}  # of all codes alike: it moves by rounding, or not at all
    assert moved_by(algorithm, terms["discrepancy"]) - shift == encoding - shift
    assert moved_by(algorithm, terms["prior"]) == encoding
    assert moved_by(algorithm, terms["discriminator"]) == part(algorithm, "discriminator.")


@pytest.mark.parametrize(
    ("term", "names"),
    [
        ("reconstruction", ("encoder.weight", "decoder.output.weight")),
        ("prior", ("backbone.layer.weight", "encoder.weight")),
        ("discriminator", ("discriminator.hidden.weight", "discriminator.output.weight")),
    ],
)
def test_the_gradients_equal_finite_differences(term: str, names: tuple[str, ...]) -> None:
    algorithm, episode, noise = mmd_aae(), episode_of(), prior_noise()
    found = gradients(algorithm, algorithm.losses(episode, noise)[term])
    for name in names:
        parameter = algorithm.get_parameter(name)
        numeric = numeric_gradient(lambda: algorithm.losses(episode, noise)[term], parameter.data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


def stepped(algorithm: MMDAAE, episode: Episode, term: str, rate: float = 0.05) -> dict[str, Tensor]:
    """The terms after a step along one of them."""
    slopes = gradients(algorithm, algorithm.losses(episode, prior_noise())[term])
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            parameter.sub_(rate * slopes[name])
    return algorithm.losses(episode, prior_noise())


def test_encoder_and_discriminator_work_against_one_another() -> None:
    episode = episode_of()
    before = mmd_aae().losses(episode, prior_noise())
    after = stepped(mmd_aae(), episode, "discriminator")
    assert after["discriminator"] < before["discriminator"]
    after = stepped(mmd_aae(), episode, "prior")
    assert after["prior"] < before["prior"]
    assert after["discriminator"] > before["discriminator"]


def test_steps_along_the_discrepancy_bring_the_domains_together() -> None:
    algorithm, episode = mmd_aae(), episode_of()
    values = [stepped(algorithm, episode, "discrepancy", rate=0.5)["discrepancy"].item() for _ in range(60)]
    assert values[-1] < 0.7 * values[0]


@final
class Encoded(Backbone):
    """Backbone and encoder as one."""

    feature_size = CODE
    image_size = 3
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.encoder = Smooth(), nn.Linear(Smooth.feature_size, CODE)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.encoder(self.backbone(images))


def test_without_weights_it_is_erm_with_one_more_layer() -> None:
    algorithm, episode = mmd_aae(**dict.fromkeys(WEIGHTS, 0.0)), episode_of()
    erm = ERM(Encoded(), CLASSES, ERM.Config()).double()
    own = algorithm.state_dict()
    erm.load_state_dict({name: own[name.removeprefix("backbone.")] for name in erm.state_dict()})
    terms = algorithm.losses(episode, prior_noise())
    expected = erm.losses(episode, {})["classification"]
    assert terms["classification"] == expected
    found = gradients(algorithm, torch.stack(list(terms.values())).sum())
    for name, gradient in gradients(erm, expected).items():
        torch.testing.assert_close(found[name.removeprefix("backbone.")], gradient, rtol=1e-12, atol=1e-14)
    assert all(found[name].abs().max() == 0 for name in part(algorithm, "decoder."))
    assert all(found[name].abs().max() > 0 for name in part(algorithm, "discriminator."))
