"""Images on disk, as domains of classes: listing, decoding, splitting and checking them.

Others use `sources.catalog.open_dataset`, the contract `dataset.Dataset`, `splits.split_domains`,
`opening.open_sources` and `opening.open_target`, `episodes`, `transforms`, `arrays`, `inspection.inspect`, and
`decoding.images`, the one place that opens an image.
"""
