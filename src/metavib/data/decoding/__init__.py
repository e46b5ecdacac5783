"""Image files decoded within bounds of time and memory, at 8 bits and more."""

__all__ = [
    "deep_images",
    "images",
    "pixel_range",
    "shrinking",
]
