"""How samples are divided among processes. What becomes of gradients is tested in test_torchrun.py, for real."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from metavib.core.processes.division import Division, copied
from metavib.data.episodes import EpisodeSampler, Source
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Augmentation, Preprocessing
from metavib.nn.backbone import divided
from metavib.nn.backbones import DigitNetwork

SIZES = [(1, 1), (1, 4), (2, 2), (3, 7), (4, 5), (2, 5), (5, 5), (8, 3)]


@pytest.mark.parametrize(("size", "samples"), SIZES)
def test_every_sample_is_somebodys_and_all_blocks_are_alike(size: int, samples: int) -> None:
    values = torch.arange(2 * samples).view(2, samples)
    blocks = [Division(rank, size, samples).own(values, dim=1) for rank in range(size)]
    assert {block.shape for block in blocks} == {(2, -(-samples // size))}
    together = torch.cat(blocks, dim=1)
    assert torch.equal(together[:, :samples], values)
    # What fills the last blocks up is the last sample.
    assert (together[:, samples:] == values[:, -1:]).all()


@pytest.mark.parametrize(("size", "samples"), SIZES)
def test_rows_are_divided_domain_by_domain(size: int, samples: int) -> None:
    by_domain = torch.randn(3, samples, 2)
    for rank in range(size):
        division = Division(rank, size, samples)
        own = division.own(by_domain, dim=1)
        assert torch.equal(division.own_rows(by_domain.flatten(0, 1)), own.flatten(0, 1))


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(0.5, 0.5, 0.3, 0.2)])
def test_the_images_of_all_processes_are_those_of_one(resident: bool, augmentation: Augmentation) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (24, 3, 8, 8), dtype=np.uint8)
    store = ImageStore([pixels], torch.device("cpu"), resident=resident)
    rows = [[*range(0, 8)], [*range(8, 16)], [*range(16, 24)]]
    source = Source(store, Preprocessing(8, 3, (0.5,) * 3, (0.2,) * 3), rows, [n % 2 for n in range(24)], 2)

    def sampler(division: Division | None) -> EpisodeSampler:
        return EpisodeSampler(
            [source],
            [7],
            domains_per_episode=3,
            images_per_domain=5,
            class_balanced=False,
            augmentation=augmentation,
            division=division,
        )

    whole = sampler(None).draw(3)
    shares = [sampler(Division(rank, 2, 5)).draw(3) for rank in (0, 1)]
    for role in (0, 1):
        together = torch.cat([share[role].images for share in shares], dim=1)
        torch.testing.assert_close(together[:, :5], whole[role].images, rtol=0, atol=1e-6)
        for share in shares:
            assert share[role].images.shape[1] == 3  # of 5, in two blocks
            assert torch.equal(share[role].labels, whole[role].labels)
            assert torch.equal(share[role].domains, whole[role].domains)


def test_a_backbone_is_divided_in_its_scope_alone() -> None:
    backbone, division = DigitNetwork(), Division(0, 2, 4)
    with divided(backbone, division):
        assert backbone.division is division
        with divided(backbone, None):
            assert backbone.division is None
        assert backbone.division is division
    with contextlib.suppress(KeyError), divided(backbone, division):
        raise KeyError
    assert backbone.division is None


@pytest.mark.parametrize("shape", [(32, 1, 3, 3), (8, 4, 3, 3), (5, 7), (3,)])
def test_copied_parameters_lie_in_memory_as_they_did(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    if len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    (copy,) = copied({"weight": weight.requires_grad_()}).values()
    assert copy.stride() == weight.stride()  # of one channel too, which `view` would take for something else
    assert torch.equal(copy, weight)
