"""The HTTP server of `metavib serve`."""

__all__ = [
    "examples",
    "guards",
    "limits",
    "listening",
    "server",
    "service",
]
