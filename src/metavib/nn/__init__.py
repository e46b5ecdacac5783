"""Networks and their mathematics: backbones, weights, heads, pure functions, keyed randomness.

`networks.network_named` finds a network, `networks.build_backbone` builds it, `backbones.BACKBONES` is the
registry, and `backbone.Backbone` the contract. `__all__` names the modules that other stages may use.
"""

__all__ = [
    "backbone",
    "backbones",
    "domain_classifiers",
    "frozen",
    "functional",
    "inference",
    "kernels",
    "mlp",
    "networks",
    "own_network",
    "probing",
    "randomness",
    "texture",
    "timm_network",
    "two_layers",
    "watching",
    "weights",
]
