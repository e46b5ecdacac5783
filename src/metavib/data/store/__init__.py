"""Pixels of a run: in memory, on a device, or in a file that is read ahead."""

__all__ = [
    "prefetch",
    "storage",
]
