"""The command line: `commands` has a file for each command, the other modules what commands share."""

__all__ = [
    "main",
]
