"""What an experiment is called does not change when settings are added, and does when they mean something else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from metavib.algorithms import ALGORITHMS, algorithm_named
from metavib.algorithms.erm import ERM
from metavib.core.errors import UserError
from metavib.core.settings import Settings, absent_values, setting
from metavib.data.transforms import Augmentation
from metavib.models.measuring import Evaluation
from metavib.training import experiment as experiments
from metavib.training.experiment import experiment_from, recorded_experiment
from metavib.training.identity import FIRST, counted
from metavib.training.optimizer import Training

KNOWN = json.loads((Path(__file__).parents[1] / "fixtures" / "identities-1.json").read_text())
VALUES = {"dataset": "rotated-digits", "target": "75", "algorithm": "erm", "seed": 1, "preset": "demo"}


@dataclasses.dataclass(frozen=True)
class Smoother(ERM.Config):
    """ERM's settings in a version to come."""

    smoothing: float = setting(0.25, "made up", minimum=0, absent=0.0)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """ERM has one more setting."""
    monkeypatch.setattr(ERM, "Config", Smoother)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["identity"])
def test_the_experiments_of_the_first_version_keep_their_identities(known: dict[str, Any]) -> None:
    assert recorded_experiment(known["experiment"]).identity() == known["identity"]


def test_every_algorithm_of_the_first_version_is_among_them() -> None:
    algorithms = {known["experiment"]["algorithm"] for known in KNOWN}
    assert {*FIRST} - {"training", "augmentation", "evaluation"} <= algorithms
    assert algorithms <= {*ALGORITHMS}


@pytest.mark.parametrize("owner", ["training", "augmentation", "evaluation", *ALGORITHMS])
def test_a_setting_that_came_later_says_what_its_absence_means(owner: str) -> None:
    """Otherwise a changed default would change what old records mean."""
    sections = {"training": Training, "augmentation": Augmentation, "evaluation": Evaluation}
    kind = sections[owner] if owner in sections else algorithm_named(owner).Config
    later = [field for field in dataclasses.fields(kind) if field.name not in FIRST.get(owner, "").split()]
    unsaid = [field.name for field in later if field.metadata["absent"] is None]
    assert not unsaid, f"declare {unsaid} of {owner} with absent=: see core/settings.py"


@pytest.mark.usefixtures("later")
def test_a_new_setting_counts_only_where_it_does_something() -> None:
    before = next(known for known in KNOWN if known["experiment"]["algorithm"] == "erm")
    old = recorded_experiment(before["experiment"])
    assert old.method == Smoother(smoothing=0.0)  # and not the default of today
    assert old.identity() == before["identity"]
    assert experiment_from(VALUES).method == Smoother(smoothing=0.25)
    known = {
        smoothing: experiment_from(VALUES, {"smoothing": smoothing}).identity() for smoothing in (0.0, 0.1)
    }
    assert known[0.0] != known[0.1]
    assert experiment_from(VALUES).identity() not in known.values()


def test_a_setting_without_absent_means_its_default() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Settings):
        width: int = setting(3, "made up", minimum=1)

    assert absent_values(Mine) == {"width": 3}
    assert counted(Mine(), "mine") == {}
    assert counted(Mine(width=4), "mine") == {"width": 4}


def test_another_meaning_is_another_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = experiment_from(VALUES).identity()
    monkeypatch.setattr(Training, "VERSION", 2)
    assert experiment_from(VALUES).identity() != before


def test_a_changed_default_of_the_first_settings_is_another_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = experiment_from(VALUES)
    recipe = experiments.recipe_named("demo", "rotated-digits", "erm")
    changed = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, clip_norm=2.0))
    monkeypatch.setattr(experiments, "recipe_named", lambda *names: changed)
    assert experiment_from(VALUES).identity() != before.identity()
    assert recorded_experiment(before.to_json()) == before  # a record keeps what it had


def test_a_record_of_a_newer_version_is_refused_in_words() -> None:
    record = experiment_from(VALUES).to_json()
    record["training"] |= {"momentum": 0.9}
    with pytest.raises(UserError, match=r"training has the setting 'momentum'.*newer version"):
        recorded_experiment(record)


def test_a_record_that_holds_more_than_an_experiment_is_refused_in_words() -> None:
    record = experiment_from(VALUES).to_json() | {"second_target": "60"}
    with pytest.raises(UserError, match=r"has the value 'second_target', .* made by a newer version"):
        recorded_experiment(record)
