"""One run in several processes, as torchrun starts them: who they are, what each does, and what they share."""

__all__ = [
    "division",
    "environment",
    "group",
    "torchrun",
]
