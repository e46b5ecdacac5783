from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metavib.algorithms.low_rank import START, TuckerTensor

INDICATORS = 4  # three domains, and none in particular
SHAPES = [(6,), (6, 5), (6, 5, 3, 3)]


def first_of(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def tensor_of(first: Tensor, domain_rank: int, channel_rank: float = 1.0) -> TuckerTensor:
    torch.manual_seed(0)
    return TuckerTensor(first, INDICATORS, domain_rank, channel_rank).double()


def z(*entries: float) -> Tensor:
    return torch.tensor([entries], dtype=torch.float64)


AGNOSTIC = z(0, 0, 0, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("domain_rank", [1, 2, 4])
def test_the_agnostic_weights_begin_as_the_given_ones_and_domains_near_them(
    shape: tuple[int, ...], domain_rank: int
) -> None:
    first = first_of(shape)
    tensor = tensor_of(first, domain_rank)
    torch.testing.assert_close(tensor(AGNOSTIC)[0], first)
    for domain in range(3):
        indicator = AGNOSTIC.clone()
        indicator[0, domain] = 1.0
        distance = (tensor(indicator)[0] - first).norm()
        assert distance <= 2 * START
        assert (distance == 0) == (domain_rank == 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_at_full_rank_the_core_holds_the_weights_of_each_domain(shape: tuple[int, ...]) -> None:
    tensor = tensor_of(first_of(shape), INDICATORS)
    assert [name for name, _ in tensor.named_parameters()] == ["core"]
    wanted = torch.randn(INDICATORS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        laid_out = wanted.movedim(2, -1) if len(shape) > 1 else wanted
        tensor.core.copy_(laid_out.flatten(1))
    torch.testing.assert_close(tensor(torch.eye(INDICATORS, dtype=torch.float64)), wanted)
    torch.testing.assert_close(tensor(z(0, 1, 0, 1))[0], wanted[1] + wanted[3])


def test_the_weights_are_the_product_of_core_and_factors() -> None:
    tensor = tensor_of(first_of((6, 5, 3, 2)), 2, 0.5)
    assert tensor.outputs is not None
    assert tensor.inputs is not None
    assert tensor.of_domains is not None
    core = tensor.core.unflatten(1, (3, 3, 2, 3))  # outputs, height, width, inputs
    expected = torch.einsum("zd,dohwi,yo,xi->zyxhw", tensor.of_domains, core, tensor.outputs, tensor.inputs)
    torch.testing.assert_close(tensor(torch.eye(INDICATORS, dtype=torch.float64)), expected)


@pytest.mark.parametrize(("domain_rank", "channel_rank"), [(1, 1.0), (2, 0.5), (3, 0.2)])
def test_the_ranks_are_those_asked_for(domain_rank: int, channel_rank: float) -> None:
    tensor = tensor_of(first_of((10, 5, 3, 3)), domain_rank, channel_rank)
    with torch.no_grad():
        for parameter in tensor.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(2))
        weights = tensor(torch.eye(INDICATORS, dtype=torch.float64))
    ranks = [int(torch.linalg.matrix_rank(weights.movedim(mode, 0).flatten(1))) for mode in range(3)]
    assert ranks == [domain_rank, round(10 * channel_rank), max(1, -int(-5 * channel_rank // 1))]


def test_a_truncation_keeps_weights_of_that_rank_and_the_best_part_of_others() -> None:
    generator = torch.Generator().manual_seed(3)
    core, left, right = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in [(3, 2, 3, 3), (6, 3), (4, 2)]
    )
    first = torch.einsum("abhw,oa,ib->oihw", core, left, right)
    torch.testing.assert_close(tensor_of(first, 2, 0.5)(AGNOSTIC)[0], first)
    # A matrix has its best approximation of a rank (Eckart and Young); the rest are the singular values cut off.
    matrix = first_of((6, 6))
    error = (tensor_of(matrix, 1, 0.5)(AGNOSTIC)[0] - matrix).square().sum()
    torch.testing.assert_close(error, torch.linalg.svdvals(matrix)[3:].square().sum())


def test_every_factor_has_a_gradient_from_the_first_step_on() -> None:
    for first in (first_of((6, 5, 3, 3)), torch.zeros(6, dtype=torch.float64)):  # biases begin at zero
        tensor = tensor_of(first, 2, 0.5)
        probe = torch.randn(tensor(AGNOSTIC).shape, dtype=torch.float64)
        (tensor(z(0, 1, 0, 1)) * probe).sum().backward()
        assert all(own.grad is not None and own.grad.abs().max() > 0 for own in tensor.parameters())


def test_parameters_have_two_axes_at_most_so_that_any_memory_format_suits_them() -> None:
    tensor = tensor_of(first_of((6, 5, 3, 3)), 2, 0.5)
    assert max(parameter.ndim for parameter in tensor.parameters()) == 2
    nn.Module.to(tensor, memory_format=torch.channels_last)
