"""Networks and their mathematics: backbones, weights, heads, pure functions, keyed randomness.

Others use `networks.network_named` and `networks.build_backbone`, the registry `backbones.BACKBONES`, the contract
`backbone.Backbone`, `weights`, `inference`, `randomness` and `functional`; `kernels` is reached through them.
"""
