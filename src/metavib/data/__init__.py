"""Images on disk, as domains of classes: listing, decoding, splitting and checking them.

`sources.catalog.open_dataset` opens a dataset by its name or path, `dataset.Dataset` is the contract,
`opening.open_sources` and `opening.open_target` read the images, and `decoding.images` is the one place that
opens an image file. `__all__` names the modules that other stages may use.
"""

__all__ = [
    "arrays",
    "dataset",
    "decoding",
    "drifts",
    "episodes",
    "feature_cache",
    "fetching",
    "file_dataset",
    "inspection",
    "lone_classes",
    "opening",
    "sources",
    "splits",
    "store",
    "suspicious_labels",
    "transforms",
]
