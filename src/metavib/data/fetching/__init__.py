"""Published datasets brought onto this machine: downloaded, checked, unpacked, whole or absent."""

__all__ = [
    "download",
    "fetch",
    "hugging_face",
    "parquet_images",
    "publications",
]
