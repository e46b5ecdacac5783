"""Dataclasses from plain values, as JSON has them, that somebody else may have written: every field is checked."""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

Made = TypeVar("Made")


class UnknownField(ValueError):
    """A field that a dataclass does not have, and nothing else amiss: a newer version may have added it."""

    def __init__(self, kind: type, name: str) -> None:
        super().__init__(f"{kind.__name__} does not know {name!r:.50}")
        self.name = name


def plain(value: Any) -> Any:
    """The value; where it is a scalar of numpy or torch, which a grid of settings may hold, Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def made(kind: type[Made], values: Any) -> Made:
    """The dataclass with these values. ValueError, which names the field, where they are not what it takes."""
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} is not made of {values!r:.50}")
    wanted = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = [str(name) for name in values if name not in fields]
    missing = [
        name
        for name, field in fields.items()
        if name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        also = f" and does not know {unknown!r:.200}" if unknown else ""
        raise ValueError(f"{kind.__name__} lacks {missing}{also}")
    found = {name: checked(wanted[name], value, name) for name, value in values.items() if name in fields}
    if unknown:
        raise UnknownField(kind, unknown[0])
    return kind(**found)


def checked(wanted: Any, value: Any, name: str) -> Any:
    """The value as the wanted type: scalars, unions, tuples and dictionaries of them, and dataclasses."""
    origin, inside = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inside:
            return None
        (other,) = (kind for kind in inside if kind is not type(None))
        return checked(other, value, name)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(checked(inside[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: checked(inside[1], item, name) for key, item in value.items()}
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return made(wanted, value)
    if wanted is float and type(value) in (int, float):
        if abs(value) <= 1e300 and math.isfinite(value):
            return float(value)
    elif type(value) is wanted and (wanted is not int or abs(value) < 2**63):
        return value
    raise ValueError(f"{name} cannot be {value!r:.50}")
