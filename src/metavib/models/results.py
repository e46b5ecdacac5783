"""The results of a run, typed: `results.json`, and `validation.json` of a run whose target is still closed.

A measure is a name with a mean and a deviation. Records have the measures that there were when they were made: one
that came later is absent from them (`Measurement.mean` is None), and nobody takes them for damaged.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from metavib.core import atomic
from metavib.core.errors import UserError, made_by_newer
from metavib.core.json_record import read_json, require_fields, require_format
from metavib.core.plain_values import UnknownField, checked, made

FORMAT = 1
NOT_MEASURED = "not measured"  # where a record has no such measure
_NOT_MEASURES = ("images", "measured_by", "per_class_accuracy", "per_class_images", "domains")
_ABSENT = {"average": "none"}  # what a record means that is older than the field


@dataclass(frozen=True)
class Spread:
    """A measure over repeats, or over domains."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class ClassAccuracies:
    """One domain, class by class."""

    per_class_accuracy: tuple[float | None, ...] = ()  # None where it has no image of the class
    per_class_images: tuple[int, ...] | None = None  # older records do not say
    images: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The class accuracies as plain values."""
        plain: dict[str, Any] = {} if self.images is None else {"images": self.images}
        plain["per_class_accuracy"] = list(self.per_class_accuracy)
        if self.per_class_images is not None:
            plain["per_class_images"] = list(self.per_class_images)
        return plain


@dataclass(frozen=True)
class Measurement:
    """Measures on some images, and how they were made."""

    images: int
    measured_by: str
    measures: dict[str, Spread]
    by_class: ClassAccuracies
    domains: dict[str, ClassAccuracies] | None = None  # of source validation

    def mean(self, measure: str) -> float | None:
        """The mean of a measure; None where it was not measured."""
        return self.measures[measure].mean if measure in self.measures else None

    def to_json(self) -> dict[str, Any]:
        """Plain values: each measure stands under its name."""
        plain: dict[str, Any] = {"images": self.images, "measured_by": self.measured_by}
        plain |= {name: asdict(spread) for name, spread in self.measures.items()}
        plain |= self.by_class.to_json()
        if self.domains is not None:
            plain["domains"] = {name: one.to_json() for name, one in self.domains.items()}
        return plain


@dataclass(frozen=True)
class Unsure:
    """Effect of the threshold of `unsure` on the unseen domain."""

    coverage: float
    answered: float
    accuracy: float | None  # of those that are answered; None where none is
    checked_on: int | None = None  # validation images that the threshold rests on


@dataclass(frozen=True)
class ExpectedDomain:
    """Results of runs on a domain that they held out."""

    accuracy: float
    class_averaged_accuracy: float
    runs: int
    images: int


@dataclass(frozen=True)
class Expected:
    """The expected accuracy of a model of all domains on a new one."""

    runs: int
    domains: dict[str, ExpectedDomain]
    accuracy: Spread
    class_averaged_accuracy: Spread
    differences: tuple[str, ...] = ()  # between those runs and this one


@dataclass(frozen=True)
class Results:
    """The identity of a run, its main settings, and its measurements."""

    experiment: str  # its identity
    dataset: str
    protocol: str
    split: str
    algorithm: str
    backbone: str
    weights: str
    preset: str
    seed: int
    steps: int
    selection: str
    average: str
    without: tuple[str, ...]
    classes: tuple[str, ...]
    unseen_domain: str | None
    unseen: Measurement | None = None
    source_validation: Measurement | None = None
    unsure: Unsure | None = None
    data: dict[str, Any] | None = None  # about the images; None while the target is closed
    expected: Expected | None = None

    @property
    def measured(self) -> Measurement | None:
        """On the unseen domain; where nothing was held out, on source validation."""
        return self.source_validation if self.unseen_domain is None else self.unseen

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the file holds them."""
        plain: dict[str, Any] = {"format": FORMAT}
        plain |= {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {"without": list(self.without), "classes": list(self.classes)}
        for name in ("unseen", "source_validation"):
            measured: Measurement | None = plain[name]
            plain[name] = None if measured is None else measured.to_json()
        plain["unsure"] = None if self.unsure is None else asdict(self.unsure)
        if self.expected is not None:
            plain["expected"] = asdict(self.expected) | {"differences": list(self.expected.differences)}
        left_out = ["expected"] if self.expected is None else []
        if self.data is None:
            left_out += ["unseen", "unsure", "data"]
        return {name: value for name, value in plain.items() if name not in left_out}


def write_results(path: Path, results: Results) -> None:
    """Write the file, whole or not at all."""
    atomic.write_json(path, results.to_json())


def read_results(path: Path) -> Results:
    """Read the file. `UserError` says in one line why it cannot be used."""
    return results_from(read_json(path), path)


def results_from(record: Mapping[str, Any], path: Path) -> Results:
    """The results that `to_json` made plain, in this version or an earlier one."""
    require_format(record, path, FORMAT)
    everything = {field.name for field in fields(Results)}
    require_fields(record, path, everything | {"format"})
    names = everything - {"unseen", "source_validation"}
    try:
        known = made(Results, _ABSENT | {name: value for name, value in record.items() if name in names})
        unseen, validation = (_measurement(record.get(name)) for name in ("unseen", "source_validation"))
    except UnknownField as error:
        raise made_by_newer(path, f"the field {error.name!r:.50}") from error
    except (KeyError, TypeError, ValueError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is damaged: {what}. Remove it, and the run is measured again.") from error
    return Results(**{**vars(known), "unseen": unseen, "source_validation": validation})


def _measurement(record: Any) -> Measurement | None:
    if record is None:
        return None
    if not isinstance(record, dict):
        raise ValueError(f"a measurement cannot be {record!r:.50}")
    spreads = {name: _spread(name, one) for name, one in record.items() if name not in _NOT_MEASURES}
    domains = record.get("domains")
    return Measurement(
        checked(int, record["images"], "images"),
        checked(str, record["measured_by"], "measured_by"),
        spreads,
        _by_class(record),
        None if domains is None else {name: _by_class(one, images=True) for name, one in domains.items()},
    )


def _spread(name: str, record: Any) -> Spread:
    if not isinstance(record, dict):
        raise ValueError(f"{name} cannot be {record!r:.50}")
    if later := record.keys() - {"mean", "deviation"}:
        raise UnknownField(Spread, min(later))
    return Spread(checked(float, record["mean"], name), checked(float, record["deviation"], name))


def _by_class(record: Mapping[str, Any], *, images: bool = False) -> ClassAccuracies:
    names = ("per_class_accuracy", "per_class_images", *(["images"] if images else []))
    return made(ClassAccuracies, {name: record[name] for name in names if name in record})
