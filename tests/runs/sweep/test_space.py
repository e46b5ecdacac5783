"""What a sweep varies: lists, ranges, grids and draws, and what is refused."""

import math

import pytest

from metavib.core.errors import UserError
from metavib.runs.sweep.space import Interval, Listed, every_combination, random_setting, space_from

BOTH = ("erm", "metavib")


def test_lists_and_ranges_are_told_apart():
    space = space_from(
        {
            "method.beta": [0.1, 0.01, 0.1],
            "learning_rate": {"low": "1e-4", "high": 1e-2, "scale": "log"},
            "training.warmup": {"low": 0, "high": 3},
            "backbone": ["digits", "squeezenet"],
        },
        BOTH,
    )
    assert space == {
        "method.beta": Listed((0.1, 0.01)),
        "learning_rate": Interval(1e-4, 1e-2, log=True, whole=False),
        "training.warmup": Interval(0, 3, log=False, whole=True),
        "backbone": Listed(("digits", "squeezenet")),
    }


def test_a_grid_varies_its_last_setting_fastest_and_without_settings_has_one_combination():
    space = {"a": Listed((1, 2)), "b": Listed(("x", "y"))}
    assert [tuple(own.values()) for own in every_combination(space)] == [
        (1, "x"),
        (1, "y"),
        (2, "x"),
        (2, "y"),
    ]
    assert list(every_combination({})) == [{}]


@pytest.mark.parametrize("log", [False, True])
def test_a_range_of_whole_numbers_reaches_both_ends_and_nothing_beyond(log):
    own = Interval(2, 5, log=log, whole=True)
    drawn = [own.drawn(number / 1000) for number in range(1000)]
    assert set(drawn) == {2, 3, 4, 5}
    assert drawn == sorted(drawn)
    assert own.drawn(1 - 2**-24) == 5


def test_a_logarithmic_range_has_its_geometric_mean_in_the_middle():
    assert Interval(1e-4, 1e-2, log=True, whole=False).drawn(0.5) == pytest.approx(1e-3)
    assert Interval(0.0, 4.0, log=False, whole=False).drawn(0.25) == 1.0
    assert Interval(1e-4, 1e-2, log=True, whole=False).drawn(0.0) == 1e-4


def test_rounding_never_leaves_the_range():
    own = Interval(0.12345678, 0.12345679, log=False, whole=False)
    assert {own.drawn(share) for share in (0.0, 0.5, 1 - 2**-24)} <= {0.12345678, 0.12345679}


def test_draws_depend_on_seed_trial_and_name_alone():
    space = {"a": Interval(0.0, 1.0, False, False), "b": Interval(0.0, 1.0, False, False)}
    found = [random_setting(space, 0, trial) for trial in range(200)]
    assert found == [random_setting(space, 0, trial) for trial in range(200)]
    assert {"b": found[3]["b"]} == random_setting({"b": space["b"]}, 0, 3)  # the same for whoever has it
    assert random_setting(space, 1, 3) != found[3]
    values = [own["a"] for own in found]
    assert len(set(values)) == 200
    assert math.isclose(sum(values) / 200, 0.5, abs_tol=0.1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("beta", "space must hold settings"),
        ({"bata": [1]}, "unknown setting in space 'bata'; did you mean 'beta'"),
        ({1: [1]}, "unknown setting in space '1'"),
        ({"beta": 0.1}, "A single value goes to settings"),
        ({"beta": []}, "beta in space is empty"),
        ({"beta": [None]}, "holds None, which is not a value"),
        ({"beta": [[1]]}, "which is not a value"),
        ({"beta": [1], "method.beta": [2]}, "beta stands twice"),
        ({"beta": {"low": 1, "hgh": 2}}, "unknown key of the range of beta 'hgh'; did you mean 'high'"),
        ({"beta": {"low": 1}}, "high of beta in space must be a number, not None"),
        ({"beta": {"low": True, "high": 2}}, "low of beta in space must be a number"),
        ({"beta": {"low": 0, "high": "inf"}}, "high of beta in space must be a number"),
        ({"beta": {"low": 2, "high": 1}}, "the range of beta is empty"),
        ({"beta": {"low": 0, "high": 1, "scale": "log"}}, "with scale: log it must be above 0"),
        ({"beta": {"low": 1, "high": 2, "scale": "lin"}}, "unknown scale of beta 'lin'"),
        ({"steps": {"low": 1.5, "high": 3}}, "low of steps in space must be a whole number"),
        ({"schedule": {"low": 1, "high": 3}}, "schedule is not a number"),
    ],
    ids=str,
)
def test_what_will_not_do_is_refused_in_words(given, said):
    with pytest.raises(UserError, match=said):
        space_from(given, BOTH)


def test_a_setting_of_an_algorithm_that_is_not_swept_is_unknown():
    with pytest.raises(UserError, match="unknown setting in space 'beta'"):
        space_from({"beta": [1]}, ("erm",))
