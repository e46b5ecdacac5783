"""The one error that users see as a single line: what is wrong, and what to do."""

import importlib
from collections.abc import Collection, Iterable
from typing import Any


class UserError(ValueError):
    """Something that the user can fix. The command line prints it as one line and exits with status 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones; it suggests the nearest and lists all."""
    import difflib  # which nobody needs who makes no mistake

    choices = sorted(known)
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    suggestion = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return UserError(f"unknown {kind} {name!r}{suggestion} Known: {', '.join(choices)}")


class NewerVersionError(UserError):
    """A record holds something that came after this version."""


def made_by_newer(where: object, field: str) -> NewerVersionError:
    """The error for a record that has this field, setting or value."""
    return NewerVersionError(
        f"{where} has {field}, which this version of metavib does not know: it was made by a newer version. "
        "Upgrade metavib, or train again elsewhere."
    )


def require_known(kind: str, name: object, known: Collection[Any]) -> None:
    """Refuse a name that is not among the known ones."""
    if name not in known:
        raise unknown_name(kind, str(name), known)


def first_line(error: BaseException) -> str:
    """What somebody else's error says first; its kind, where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def installing(*, extra: str = "", package: str = "") -> str:
    """The command that installs an extra of ours, or a package: the same in every message."""
    return f"pip install 'metavib[{extra}]'" if extra else f"pip install {package}"


def require_installed(module: str, need: str, *, extra: str = "", package: str = "") -> None:
    """Refuse to go on where an optional package is not installed; `need` says what needs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{need}; run: {installing(extra=extra, package=package)}") from error
