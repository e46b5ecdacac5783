"""A scikit-learn classifier."""

__all__ = [
    "estimator",
]
