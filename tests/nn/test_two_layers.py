from __future__ import annotations

import torch
from torch import Tensor

from metavib.nn.two_layers import DomainTwoLayers, TwoLayers


def one_of(networks: DomainTwoLayers, domain: int) -> TwoLayers:
    """The network of one domain, by torch's own layers."""
    inputs, width = networks.hidden_weight.shape[1:]
    found = TwoLayers(inputs, width, networks.output_weight.shape[-1])
    with torch.no_grad():
        found.hidden.weight.copy_(networks.hidden_weight[domain].T)
        found.hidden.bias.copy_(networks.hidden_bias[domain])
        found.output.weight.copy_(networks.output_weight[domain].T)
        found.output.bias.copy_(networks.output_bias[domain])
    return found


def gradients(network: torch.nn.Module) -> list[Tensor | None]:
    return [own.grad for own in network.parameters()]


def test_each_domain_has_a_network_of_its_own() -> None:
    torch.manual_seed(0)
    networks, inputs = DomainTwoLayers(4, 5, 6, 3), torch.randn(2, 7, 5)
    found = networks(torch.tensor([3, 1]), inputs)
    for place, domain in enumerate((3, 1)):
        torch.testing.assert_close(found[place], one_of(networks, domain)(inputs[place]))
    found.sum().backward()
    for gradient in gradients(networks):
        assert gradient is not None
        moved = [own.abs().max().item() > 0 for own in gradient]
        assert moved == [False, True, False, True]


def test_all_of_them_take_the_same_inputs_where_these_have_no_domains() -> None:
    networks, inputs = DomainTwoLayers(3, 5, 6, 2), torch.randn(7, 5)
    domains = torch.tensor([2, 0])
    torch.testing.assert_close(networks(domains, inputs), networks(domains, inputs.expand(2, 7, 5)))


def test_they_begin_as_torchs_layers_do() -> None:
    torch.manual_seed(0)
    networks = DomainTwoLayers(3, 25, 64, 10)
    for weights, inputs in zip(networks.parameters(), (25, 25, 64, 64), strict=True):
        bound = inputs**-0.5
        assert 0.8 * bound < weights.abs().max() <= bound
        assert weights[0].flatten()[0] != weights[1].flatten()[0]


def test_a_frozen_network_says_the_same_and_hands_the_gradient_to_its_inputs_alone() -> None:
    torch.manual_seed(0)
    network, inputs = TwoLayers(5, 6, 3), torch.randn(7, 5, requires_grad=True)
    frozen = network.frozen(inputs)
    torch.testing.assert_close(frozen, network(inputs))
    frozen.square().sum().backward()
    assert gradients(network) == [None] * 4
    (expected,) = torch.autograd.grad(network(inputs).square().sum(), inputs)
    torch.testing.assert_close(inputs.grad, expected)
