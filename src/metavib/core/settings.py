"""Settings: frozen dataclasses that know the meaning and the limits of every field.

A setting is declared once, inside its owner:

    beta: float = setting(0.01, "weight of the bottleneck", minimum=0)

From that line come the default, the check, the line in `metavib describe`, the name for `--set` and the key
in a YAML file.

Records outlive versions. A setting that is added later says by `absent` which of its values does what was done
before there was such a setting. Records without it mean that value, and it counts for nothing in the identity of
an experiment (`training/identity.py`). Where `absent` is not given, it is the default: so whoever changes a
default writes `absent` with the former one. Where settings begin to mean something else, their class gets the next
`VERSION`.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from metavib.core.errors import UserError, made_by_newer, require_known
from metavib.core.plain_values import plain

Scalar = bool | int | float | str

LARGEST_WHOLE_NUMBER = 10**9  # more steps, images or units than anybody has; beyond it arithmetic breaks down


def setting(
    default: Scalar,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    absent: Scalar | None = None,
) -> Any:
    """A field with its meaning and limits; `above` is a lower bound that the value may not equal.

    `absent` is what records mean that are older than the setting (the default).
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata={"meaning": meaning, "absent": absent, **limits})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of every settings dataclass: checks each field when it is made."""

    VERSION: ClassVar[int] = 1  # of what the settings mean

    def __post_init__(self) -> None:
        types = _types_of(type(self))
        for field in dataclasses.fields(self):
            value = _checked(field, types[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)


AnySettings = TypeVar("AnySettings", bound=Settings)


class Description(typing.NamedTuple):
    """One setting as `metavib describe` shows it."""

    name: str
    default: Scalar
    takes: str
    meaning: str


def describe(settings: Settings) -> list[Description]:
    """Name, value, limits and meaning of each setting, in the order of their declaration."""
    types = _types_of(type(settings))
    return [
        Description(
            field.name,
            getattr(settings, field.name),
            _takes(field, types[field.name]),
            field.metadata["meaning"],
        )
        for field in dataclasses.fields(settings)
    ]


def names_of(kind: type[Settings]) -> tuple[str, ...]:
    """The names of a class's settings."""
    return tuple(field.name for field in dataclasses.fields(kind))


def changed(settings: AnySettings, values: Mapping[str, Any], where: str) -> AnySettings:
    """The settings with some replaced; a name that they do not have is an error that suggests the nearest."""
    fields = {field.name: field for field in dataclasses.fields(settings)}
    types = _types_of(type(settings))
    for name in values:
        require_known(f"{where} setting", name, fields)
    checked = {name: _checked(fields[name], types[name], value) for name, value in values.items()}
    return dataclasses.replace(settings, **checked)


def absent_values(kind: type[Settings]) -> dict[str, Scalar]:
    """The value of each setting in a record that does not have it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        absent = field.metadata["absent"]
        found[field.name] = field.default if absent is None else absent
    return found


def from_record(kind: type[AnySettings], values: Mapping[str, Any], where: str) -> AnySettings:
    """The settings of a record, which may be older than some of them, or newer than this version."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must hold settings, not {values!r:.50}.")
    if unknown := [str(name) for name in values if name not in names_of(kind)]:
        raise made_by_newer(where, f"the setting {unknown[0]!r:.50}")
    return kind(**absent_values(kind) | dict(values))


_TYPES: dict[
    type, dict[str, Any]
] = {}  # by class: every new object asks for them, and finding them takes long


def _types_of(kind: type[Settings]) -> dict[str, Any]:
    if kind not in _TYPES:
        _TYPES[kind] = typing.get_type_hints(kind)
    return _TYPES[kind]


def _checked(field: dataclasses.Field[Any], wanted: type, value: Any) -> Scalar:
    value = plain(value)
    converted = _converted(wanted, value)
    if converted is None or not _within(field.metadata, converted):
        raise UserError(f"{field.name} must be {_takes(field, wanted)}, not {value!r}.")
    return converted


def _converted(wanted: type, value: Any) -> Scalar | None:
    """The value as the wanted type, from a string too; None where it is not one."""
    if wanted is bool:
        return {"true": True, "false": False}.get(str(value).lower())
    if wanted is str:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number: int | float = int(value) if wanted is int and isinstance(value, str) else float(value)
        if not math.isfinite(number) or (wanted is int and number != int(number)):
            return None
        if wanted is float:
            return float(number)
        return int(number) if abs(number) <= LARGEST_WHOLE_NUMBER else None
    except (ValueError, OverflowError):
        return None


def _within(limits: Mapping[str, Any], value: Scalar) -> bool:
    if limits["choices"] is not None:
        return value in limits["choices"]
    if isinstance(value, str):
        return True
    return (
        (limits["minimum"] is None or value >= limits["minimum"])
        and (limits["maximum"] is None or value <= limits["maximum"])
        and (limits["above"] is None or value > limits["above"])
    )


def _takes(field: dataclasses.Field[Any], wanted: type) -> str:
    limits = field.metadata
    if limits["choices"] is not None:
        return "one of " + ", ".join(limits["choices"])
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[wanted]
    if limits["above"] is not None:
        words += f" above {limits['above']:g}"
    if limits["minimum"] is not None:
        words += f" from {limits['minimum']:g}"
    if limits["maximum"] is not None:
        words += f" to {limits['maximum']:g}"
    return words
