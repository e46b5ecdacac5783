from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from metavib.core.errors import UserError
from metavib.core.settings import Description, Settings, changed, describe, names_of, setting


@dataclass(frozen=True)
class Garden(Settings):
    """Every kind of setting."""

    trees: int = setting(3, "how many trees", minimum=1, maximum=9)
    height: float = setting(2.0, "of the hedge, in metres", above=0)
    slope: float = setting(0.0, "of the lawn")
    fence: bool = setting(False, "whether there is one")
    season: str = setting("spring", "the time of the year", choices=("spring", "autumn"))
    owner: str = setting("", "whose it is")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("trees", 9, 9),
        ("trees", "4", 4),
        ("trees", 4.0, 4),
        ("height", 3, 3.0),
        ("height", "1e-3", 0.001),
        ("slope", "-0.5", -0.5),
        ("fence", True, True),
        ("fence", "true", True),
        ("fence", "False", False),
        ("season", "autumn", "autumn"),
        ("owner", "", ""),
    ],
)
def test_values_within_the_limits_are_taken_in_the_type_of_the_setting(
    name: str, value: Any, kept: Any
) -> None:
    for garden in (Garden(**{name: value}), changed(Garden(), {name: value}, "garden")):
        taken = getattr(garden, name)
        assert (taken, type(taken)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("trees", value) for value in (0, 10, 1.5, "1.5", "1e3", "four", "", True, None, [3], 10**400)],
        *[("trees", value) for value in (math.nan, math.inf)],
        *[("height", value) for value in (0, -1, "0", "tall", False, None, math.nan, math.inf, "nan", "inf")],
        *[("slope", value) for value in (math.nan, -math.inf, "-inf", 10**400)],
        *[("fence", value) for value in (1, 0, "yes", "", None)],
        *[("season", value) for value in ("winter", "Spring", "", 1, None)],
        *[("owner", value) for value in (1, True, None)],
    ],
)
def test_everything_else_is_refused_with_the_name_and_what_it_takes(name: str, value: Any) -> None:
    takes = {entry.name: entry.takes for entry in describe(Garden())}[name]
    with pytest.raises(UserError) as direct:
        Garden(**{name: value})
    with pytest.raises(UserError) as later:
        changed(Garden(), {name: value}, "garden")
    assert str(direct.value) == str(later.value) == f"{name} must be {takes}, not {value!r}."


def test_whole_numbers_end_at_a_billion_where_no_other_limit_is_given() -> None:
    @dataclass(frozen=True)
    class Large(Settings):
        number: int = setting(0, "any")

    assert Large(10**9).number == 10**9
    for value in (10**9 + 1, -(10**9) - 1, "1000000001"):
        with pytest.raises(UserError, match=r"number must be"):
            Large(value)  # type: ignore[arg-type]


def test_settings_do_not_change_and_changed_makes_new_ones() -> None:
    garden = Garden()
    with pytest.raises(dataclasses.FrozenInstanceError):
        garden.trees = 4  # type: ignore[misc]
    assert changed(garden, {"trees": 4}, "garden") == Garden(trees=4)
    assert garden == Garden(trees=3)
    assert changed(garden, {}, "garden") == garden


def test_an_unknown_name_is_an_error_that_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UserError) as error:
        changed(Garden(), {"tres": 4}, "garden")
    assert str(error.value) == (
        "unknown garden setting 'tres'; did you mean 'trees'? Known: fence, height, owner, season, slope, trees"
    )
    with pytest.raises(UserError, match=r"unknown garden setting 'zzz'\. Known: "):
        changed(Garden(), {"zzz": 4}, "garden")


def test_settings_describe_themselves_in_the_order_of_their_declaration() -> None:
    assert names_of(Garden) == ("trees", "height", "slope", "fence", "season", "owner")
    assert describe(Garden(trees=5)) == [
        Description("trees", 5, "a whole number from 1 to 9", "how many trees"),
        Description("height", 2.0, "a number above 0", "of the hedge, in metres"),
        Description("slope", 0.0, "a number", "of the lawn"),
        Description("fence", False, "true or false", "whether there is one"),
        Description("season", "spring", "one of spring, autumn", "the time of the year"),
        Description("owner", "", "text", "whose it is"),
    ]


def test_a_bad_default_is_found_when_the_settings_are_made() -> None:
    @dataclass(frozen=True)
    class Bad(Settings):
        trees: int = setting(0, "too few", minimum=1)

    with pytest.raises(UserError, match=r"trees must be .*, not 0"):
        Bad()


def test_numbers_of_numpy_are_taken_and_told_as_pythons() -> None:
    assert changed(Garden(), {"trees": np.int64(3), "height": np.float32(0.5)}, "garden").trees == 3
    with pytest.raises(UserError, match=r"^height must be .*, not 0\.0"):
        changed(Garden(), {"height": np.float64(0.0)}, "garden")
