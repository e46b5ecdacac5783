from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from metavib.algorithms.d_sam import AggregationModules

DOMAINS, SAMPLES, WIDTH, CLASSES = 3, 2, 5, 4
SIZES = (2, 3, 4, 6)  # channels of the stages below, and of the features
SIDES = (7, 3, 3)


def modules(sizes: tuple[int, ...] = SIZES) -> AggregationModules:
    torch.manual_seed(0)
    own = AggregationModules(DOMAINS, sizes, WIDTH, CLASSES).double()
    with torch.no_grad():
        for bias in own.biases:
            bias.normal_()
    return own


def stages(rows: int = DOMAINS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(size, side, side) for size, side in zip(SIZES, SIDES, strict=False)] + [(SIZES[-1],)]
    return [torch.randn(rows, SAMPLES, *shape, dtype=torch.float64, generator=generator) for shape in shapes]


def by_torch(own: AggregationModules, domain: int, maps: list[Tensor]) -> Tensor:
    """The module of one domain, node by node, with torch's convolution and pooling."""
    (aggregated, *others) = [stage if stage.ndim == 4 else stage[:, :, None, None] for stage in maps]
    for weight, bias, stage in zip(own.nodes, own.biases, others, strict=True):
        before = nn.functional.adaptive_avg_pool2d(aggregated, stage.shape[-1])
        kernel = weight[domain].T[:, :, None, None]
        aggregated = nn.functional.conv2d(torch.cat([before, stage], dim=1), kernel, bias[domain, 0]).relu()
    return aggregated.mean(dim=(2, 3))


@pytest.mark.parametrize("domains", [[0, 1, 2], [2, 0]])
def test_each_row_of_samples_passes_through_the_module_of_its_domain(domains: list[int]) -> None:
    own, maps = modules(), stages(len(domains))
    found = own.aggregated(torch.tensor(domains), maps)
    assert found.shape == (len(domains), SAMPLES, WIDTH)
    for place, domain in enumerate(domains):
        torch.testing.assert_close(found[place], by_torch(own, domain, [stage[place] for stage in maps]))


def test_samples_that_all_share_pass_through_all_modules() -> None:
    own, maps = modules(), stages(1)
    found = own.aggregated(torch.arange(DOMAINS), maps)
    for domain in range(DOMAINS):
        torch.testing.assert_close(found[domain], by_torch(own, domain, [stage[0] for stage in maps]))
    assert len(found.unique()) > found.numel() // 2  # the modules differ


def test_features_alone_stay_as_they_are() -> None:
    own, features = modules(SIZES[-1:]), stages(1)[-1]
    assert len(own.nodes) == 0
    found = own.aggregated(torch.arange(DOMAINS), [features])
    assert torch.equal(found, features.expand(DOMAINS, -1, -1))
    assert own.classifiers.weight.shape == (DOMAINS, CLASSES, SIZES[-1])


def test_maps_of_one_pixel_are_units() -> None:
    own, maps = modules(), stages()
    as_maps = [*maps[:-1], maps[-1][..., None, None]]
    numbers = torch.arange(DOMAINS)
    assert torch.equal(own.aggregated(numbers, as_maps), own.aggregated(numbers, maps))


def test_stacked_modules_equal_modules_one_by_one() -> None:
    torch.manual_seed(1)
    several = [modules() for _ in range(2)]
    with torch.no_grad():
        several[1].nodes[0].normal_()
    stacked = {
        name: torch.stack([dict(one.named_parameters())[name] for one in several])
        for name, _ in several[0].named_parameters()
    }
    maps, numbers = stages(), torch.tensor([1, 0, 2])

    class Called(nn.Module):
        def __init__(self, own: AggregationModules) -> None:
            super().__init__()
            self.own = own

        def forward(self) -> Tensor:
            return self.own.aggregated(numbers, maps)

    called = Called(several[0])
    named = {f"own.{name}": values for name, values in stacked.items()}
    together = vmap(lambda parameters: functional_call(called, parameters, ()))(named)
    for run, one in enumerate(several):
        torch.testing.assert_close(together[run], one.aggregated(numbers, maps))
