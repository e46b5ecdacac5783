"""The one error that users see as a single line: what is wrong, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something that the user can fix. The command line prints it as one line and exits with status 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones; it suggests the nearest and lists all."""
    choices = sorted(known)
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    suggestion = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return UserError(f"unknown {kind} {name!r}{suggestion} Known: {', '.join(choices)}")
