"""Mathematics without parameters or state: distributions as values, losses as pure functions."""

__all__ = [
    "adaptation",
    "gaussian",
    "information",
    "predictive",
]
