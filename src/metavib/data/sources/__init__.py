"""Where images come from: folders, manifests and the datasets known by name."""

__all__ = [
    "catalog",
    "hugging_face",
    "manifest",
    "published",
]
