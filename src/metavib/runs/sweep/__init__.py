"""Settings searched for: `plan` says what to try, `search` proposes, engines train, `rules` choose.

Only the chosen setting of each algorithm is ever measured on the unseen domain (the oracle, which peeks, apart).
"""

__all__ = [
    "engine",
    "local_engine",
    "packets",
    "plan",
    "ranking",
    "ray_engine",
    "tuning",
]
