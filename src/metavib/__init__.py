"""metavib: image classifiers that work on sources they have never seen, and say when they are unsure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metavib.serving.predictor import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """Import on first use, so that `metavib --help` need not wait for torch."""
    if name == "load":
        from metavib.serving.predictor import load

        return load
    raise AttributeError(f"module 'metavib' has no attribute {name!r}")
