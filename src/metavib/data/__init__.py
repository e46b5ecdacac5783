"""Images on disk, as domains of classes: listing, decoding, splitting and checking them."""
