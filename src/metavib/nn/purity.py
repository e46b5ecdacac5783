"""Networks from elsewhere made pure: no statistics of the batch, no draws, nothing changed in place.

What is known is replaced: batch normalisation by `pure_normalisation`, dropout and stochastic depth by nothing,
activations in place by the same ones with a result of their own. What remains impure `probing` finds.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from metavib.core.errors import UserError
from metavib.nn.pure_normalisation import FrozenBatchNorm, GroupedNorm

_DRAWING = {
    "DropPath": "drop_prob",
    "DropBlock2d": "drop_prob",
    "StochasticDepth": "p",
    "PatchDropout": "prob",
}


@final
class MeanPool(nn.Module):
    """The mean of each map: what AdaptiveAvgPool2d(1) gives, by an operator that vmap knows."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((-2, -1), keepdim=True)


def make_pure(network: nn.Module) -> nn.Module:
    """The network, its layers replaced where that makes it pure; the network itself may be such a layer.

    Batch normalisation is frozen where the network brings statistics along, and becomes GroupNorm where they are
    those that every network begins with.
    """
    trained = has_statistics(network)
    for layer in network.modules():
        _keep_constants(layer)
        if getattr(layer, "inplace", None) is True:
            layer.inplace = False  # type: ignore[assignment]
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif type(layer).__name__ in _DRAWING and hasattr(layer, _DRAWING[type(layer).__name__]):
            setattr(layer, _DRAWING[type(layer).__name__], 0.0)
        for name, child in list(layer.named_children()):
            if isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1)):
                setattr(layer, name, MeanPool())
    if isinstance(network, nn.modules.batchnorm._BatchNorm):
        return _replaced(network, "the network", trained=trained)
    for name, module in list(network.named_modules()):
        for own, child in list(module.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(module, own, _replaced(child, f"{name}.{own}".lstrip("."), trained=trained))
    return network


def _keep_constants(layer: nn.Module) -> None:
    """Make buffers of parameters that their owner does not train, so that no method trains them either."""
    for name, own in list(layer.named_parameters(recurse=False)):
        if not own.requires_grad:
            delattr(layer, name)
            layer.register_buffer(name, own.data)


def has_statistics(network: nn.Module) -> bool:
    """Whether a layer of batch normalisation has others than those that it begins with: mean 0, variance 1."""
    return any(
        layer.running_mean is not None
        and layer.running_var is not None
        and not layer.running_mean.is_meta
        and bool((layer.running_mean != 0).any() or (layer.running_var != 1).any())
        for layer in network.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    )


def freeze(network: nn.Module) -> nn.Module:
    """The network with frozen batch normalisation wherever `make_pure` put GroupNorm."""
    if isinstance(network, GroupedNorm):
        return network.frozen()
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, GroupedNorm):
                setattr(module, name, child.frozen())
    return network


def is_frozen(network: nn.Module) -> bool:
    """Whether a layer normalises by statistics that are constant."""
    return any(isinstance(layer, FrozenBatchNorm) for layer in network.modules())


def _replaced(layer: nn.modules.batchnorm._BatchNorm, name: str, *, trained: bool) -> nn.Module:
    if not layer.track_running_stats or layer.running_mean is None:
        raise UserError(
            f"{name} ({type(layer).__name__}) normalises by the images of a batch and keeps no statistics, so "
            "that features would depend on the other images: give it track_running_stats=True, or use GroupNorm."
        )
    act = _activation(layer, name)
    given = (layer.num_features, layer.eps, act)
    place: Tensor = layer.running_mean
    if not trained:
        grouped = GroupedNorm(*given, affine=layer.affine).to(place)
        _copy_affine(layer, grouped)
        return grouped
    frozen = FrozenBatchNorm(*given, affine=layer.affine).to(place)
    _copy_affine(layer, frozen)
    assert layer.running_var is not None
    frozen.running_mean.copy_(layer.running_mean)
    frozen.running_var.copy_(layer.running_var)
    return frozen


def _copy_affine(layer: nn.modules.batchnorm._BatchNorm, made: GroupedNorm | FrozenBatchNorm) -> None:
    """The first weight and bias stay: some networks begin with a weight of zero at the end of a block."""
    if layer.affine:
        assert made.weight is not None
        assert made.bias is not None
        made.weight.data.copy_(layer.weight.data)
        made.bias.data.copy_(layer.bias.data)


def _activation(layer: nn.Module, name: str) -> nn.Module | None:
    """The activation that timm's BatchNormAct2d applies after normalising; other subclasses are refused."""
    known = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    if type(layer) in known:
        return None
    extra = dict(layer.named_children())
    if set(extra) <= {"act", "drop"} and hasattr(layer, "act"):
        return extra.get("act")
    if type(layer).forward in {kind.forward for kind in known}:
        return None
    raise UserError(
        f"{name} is a {type(layer).__name__}, a batch normalisation of its own kind that cannot be made pure: use "
        "nn.BatchNorm2d, GroupNorm or LayerNorm there."
    )
