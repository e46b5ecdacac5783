"""Sweep files: what they mean, and what is refused before anything is trained."""

import pytest

from metavib.core.errors import UserError
from metavib.runs.sweep.plan import plan_from
from metavib.runs.sweep.space import Listed

SMALL = {"backbone": "digits", "weights": "none", "settings": {"steps": 3, "images_per_domain": 8}}


@pytest.fixture
def plan(folder):
    def make(**values):
        return plan_from({"dataset": str(folder), **SMALL, **values}, None)

    return make


def test_what_is_not_said_has_a_usual_value(plan):
    own = plan()
    assert own.targets == own.domains == ("art", "cartoon", "photo", "sketch")
    assert (own.seeds, own.algorithms, own.search, own.trials) == ((0,), ("metavib",), "grid", 1)
    assert (own.rule.name, own.choose_for) == ("source-validation", "target")


def test_targets_seeds_and_algorithms_are_names_numbers_or_lists(plan):
    own = plan(targets="art", seeds=3, algorithms=["erm", "metavib", "erm"])
    assert (own.targets, own.seeds, own.algorithms) == (("art",), (0, 1, 2), ("erm", "metavib"))
    assert plan(seeds=[5, 3, 5]).seeds == (5, 3)
    assert plan(without=["art"]).targets == ("cartoon", "photo", "sketch")


def test_an_angle_is_a_number_in_yaml_and_a_name_here():
    own = plan_from({"dataset": "rotated-digits", "preset": "demo", "targets": [0, 30]}, None)
    assert own.targets == ("0", "30")


def test_an_experiment_has_the_settings_of_the_file_and_those_of_the_trial(plan):
    own = plan(algorithms=["erm", "metavib"], space={"beta": [0.1, 0.2], "preset": ["fast", "demo"]})
    assert own.trials == 4
    assert own.space_of("erm") == {"preset": Listed(("fast", "demo"))}
    found = own.experiment("metavib", "art", 7, {"beta": 0.2, "preset": "demo"})
    assert (found.method.beta, found.preset, found.seed, found.target) == (0.2, "demo", 7, "art")
    assert (found.training.steps, found.backbone) == (3, "digits")
    assert found.training.selection == "source-validation"


def test_the_oracle_looks_at_the_last_model_of_each_run_unless_told_otherwise(plan):
    assert plan(select="oracle").experiment("erm", "art", 0, {}).training.selection == "last"
    own = plan(select="oracle", settings={**SMALL["settings"], "selection": "oracle"})
    assert own.experiment("erm", "art", 0, {}).training.selection == "oracle"


def test_a_cell_lies_where_its_hash_says(plan, tmp_path):
    cell = plan().cell("erm", "art", 0, {}, tmp_path)
    assert cell.out == tmp_path / "cells" / cell.experiment.identity()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dataset": None}, "no dataset is given"),
        ({"datset": "x"}, "unknown key 'datset'; did you mean 'dataset'"),
        ({"targets": "skech"}, "unknown target domain 'skech'; did you mean 'sketch'"),
        ({"targets": []}, "targets must be"),
        ({"targets": [1.5]}, "targets must be"),
        ({"targets": "art", "without": "art"}, "unknown target domain 'art'"),
        ({"algorithms": "ermm"}, "unknown algorithm 'ermm'; did you mean 'erm'"),
        ({"algorithms": [True]}, "algorithms must be"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"seeds": "three"}, "seeds must be"),
        ({"settings": [1]}, "settings must hold names and values"),
        ({"settings": {"stepz": 3}}, "unknown setting 'stepz'; did you mean 'steps'"),
        ({"settings": {"steps": "many"}}, "steps must be"),
        ({"space": {"steps": [1]}}, "steps stands in settings and in space"),
        ({"space": {"learning_rate": [0.1, -1]}}, "learning_rate must be"),
        ({"space": {"learning_rate": {"low": 1, "high": 2}}}, "learning_rate has a range, and a grid takes"),
        ({"space": {"images_per_domain": [1]}, "settings": {}}, "images_per_domain=2"),
        ({"space": {"backbone": ["digit"]}}, "unknown backbone 'digit'"),
        ({"search": "bayes"}, "unknown search 'bayes'; did you mean 'bayesian'"),
        ({"search": "random"}, "there is nothing to search for"),
        ({"search": "random", "space": {"beta": [1]}}, "needs a number of trials"),
        ({"search": "random", "space": {"beta": [1]}, "trials": 0}, "trials must be"),
        ({"search": "random", "space": {"beta": [1]}, "trials": 2.5}, "trials must be"),
        ({"space": {"beta": [1]}, "trials": 3}, "a grid tries every combination"),
        ({"space": {"beta": list(range(101)), "warmup": list(range(101))}}, "10,201 combinations"),
        ({"space": {"beta": list(range(9999))}, "seeds": 100}, "up to 100,000 are done"),
        ({"together": 0}, "together must be"),
        ({"select": "sorce-validation"}, "unknown selection rule 'sorce-validation'; did you mean 'source"),
        ({"select": None}, "unknown selection rule 'None'"),
        ({"select": "leave-one-domain-out", "without": "art"}, "needs at least 3 source domains"),
        ({"settings": {"selection": "oracle"}}, "it goes with select: oracle alone"),
        ({"choose_for": "algorithm"}, "unknown value of choose_for"),
    ],
    ids=str,
)
def test_what_will_not_do_is_refused_before_anything_is_trained(plan, values, said):
    with pytest.raises(UserError, match=said):
        plan(**values)
