"""The paper's tables: its numbers, and the same tables measured."""

__all__ = [
    "formats",
    "reproduction",
    "tables",
]
