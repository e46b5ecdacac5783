"""The space of a sweep: for each setting a list of values, or a range to draw from."""

import itertools
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from metavib.algorithms import algorithm_named
from metavib.core.errors import UserError, require_known, unknown_name
from metavib.core.settings import Scalar, Settings, names_of
from metavib.data.transforms import Augmentation
from metavib.models.measuring import Evaluation
from metavib.nn.randomness import key_of, uniform
from metavib.training.optimizer import Training

NAMED = (
    "backbone",
    "weights",
    "image_size",
    "preset",
)  # what a run is given by a flag of its own, beside its settings
SCALES = ("uniform", "log")
HOW = "a list of values, as [0.1, 0.01], or a range, as {low: 0.001, high: 0.1, scale: log}"


@final
@dataclass(frozen=True)
class Listed:
    """Values to choose from."""

    values: tuple[Scalar, ...]

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values to check: where they are valid, all of the dimension is."""
        return self.values

    def drawn(self, share: float) -> Scalar:
        """The value at this share (from 0 to below 1) of the way."""
        return self.values[int(share * len(self.values))]


@final
@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, evenly likely or evenly likely in their logarithm."""

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values to check: where they are valid, all of the dimension is."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def drawn(self, share: float) -> Scalar:
        """The number at this share of the way, with six digits: enough to search by, and short enough to read."""
        beyond = self.high + 1 if self.whole else self.high
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(beyond) - math.log(self.low)))
        else:
            value = self.low + share * (beyond - self.low)
        if self.whole:
            return int(min(max(math.floor(value), self.low), self.high))
        return min(max(float(f"{value:.6g}"), self.low), self.high)


Dimension = Listed | Interval
Space = dict[str, Dimension]


def space_from(given: Any, algorithms: Sequence[str]) -> Space:
    """The dimensions that a file names. A name that no algorithm knows is an error that suggests the nearest."""
    if not isinstance(given, Mapping):
        raise UserError(f"space must hold settings, each with {HOW}.")
    kinds = kinds_of(algorithms)
    for name in given:
        if name not in kinds:
            raise unknown_name("setting in space", str(name), [n for n in kinds if "." not in n])
    bare = [str(name).rpartition(".")[2] for name in given]
    if twice := [name for name in bare if bare.count(name) > 1]:
        raise UserError(f"{twice[0]} stands twice in space, with and without its section. Keep one.")
    return {str(name): _dimension(str(name), value, kinds[name]) for name, value in given.items()}


def kinds_of(algorithms: Iterable[str]) -> dict[str, type]:
    """The type of every setting that one of the algorithms knows, by its name with and without its section."""
    configs = [("method", algorithm_named(name).Config) for name in algorithms]
    sections: list[tuple[str, type[Settings]]] = [
        ("evaluation", Evaluation),
        ("augmentation", Augmentation),
        *configs,
        ("training", Training),  # last: `experiment_from` looks here first for a name without its section
    ]
    found: dict[str, type] = dict.fromkeys(NAMED, str) | {"image_size": int}
    for section, config in sections:
        types = typing.get_type_hints(config)
        for name in names_of(config):
            found[name] = found[f"{section}.{name}"] = types[name]
    return found


def every_combination(space: Space) -> Iterator[dict[str, Scalar]]:
    """A grid, in the order of the file; the last setting varies fastest."""
    lists = [own.values if isinstance(own, Listed) else () for own in space.values()]
    for values in itertools.product(*lists):
        yield dict(zip(space, values, strict=True))


def random_setting(space: Space, seed: int, trial: int) -> dict[str, Scalar]:
    """The setting of a trial: the same for every target and algorithm that has these dimensions."""
    shares = {name: float(uniform(key_of(seed, "sweep", name, trial), ())) for name in space}
    return {name: own.drawn(shares[name]) for name, own in space.items()}


def _dimension(name: str, value: Any, kind: type) -> Dimension:
    if isinstance(value, Mapping):
        return _range(name, value, kind)
    if not isinstance(value, list | tuple):
        raise UserError(f"{name} in space must be {HOW}, not {value!r}. A single value goes to settings.")
    if not value:
        raise UserError(f"{name} in space is empty: it must be {HOW}.")
    for one in value:
        if not isinstance(one, bool | int | float | str):
            raise UserError(f"{name} in space holds {one!r}, which is not a value of a setting.")
    return Listed(tuple(dict.fromkeys(value)))


def _range(name: str, value: Mapping[Any, Any], kind: type) -> Interval:
    for key in value:
        require_known(f"key of the range of {name}", key, ("low", "high", "scale"))
    if kind not in (int, float):
        raise UserError(f"{name} is not a number: in space it must be a list of values.")
    low, high = (_number(name, end, value.get(end), kind) for end in ("low", "high"))
    scale = value.get("scale", "uniform")
    require_known(f"scale of {name}", scale, SCALES)
    if low >= high:
        raise UserError(f"the range of {name} is empty: low is {low:g}, high is {high:g}.")
    if scale == "log" and low <= 0:
        raise UserError(f"the range of {name} begins at {low:g}: with scale: log it must be above 0.")
    return Interval(low, high, scale == "log", kind is int)


def _number(name: str, end: str, value: Any, kind: type) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or (kind is int and number != int(number)):
        wanted = "a whole number" if kind is int else "a number"
        raise UserError(f"{end} of {name} in space must be {wanted}, not {value!r}.")
    return number
