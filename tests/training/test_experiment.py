from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metavib.algorithms import ALGORITHMS
from metavib.core.config_file import read_config
from metavib.core.errors import UserError
from metavib.core.settings import names_of
from metavib.nn.backbones import BACKBONES
from metavib.training.experiment import (
    SECTIONS,
    Experiment,
    differences,
    experiment_from,
    shared_out,
    to_yaml,
)
from metavib.training.recipes import recipe_named

LEAST = {"dataset": "pacs", "target": "sketch", "seed": 1}


def experiment(assignments: dict[str, Any] | None = None, **values: Any) -> Experiment:
    return experiment_from(LEAST | values, assignments)


def test_what_is_left_open_comes_from_the_preset() -> None:
    least, recipe = experiment(), recipe_named("fast", "pacs", "metavib")
    assert (least.dataset, least.target, least.seed) == ("pacs", "sketch", 1)
    assert (least.algorithm, least.preset, least.protocol) == ("metavib", "fast", "")
    assert (least.backbone, least.weights) == ("squeezenet", "imagenet")
    assert (least.training, least.method, least.augmentation) == (
        recipe.training,
        recipe.method,
        recipe.augmentation,
    )


def test_assignments_come_before_sections_and_sections_before_the_preset() -> None:
    assert experiment(preset="paper").training.steps == 25_000
    section = {"training": {"steps": 7, "warmup": 2}}
    assert experiment(preset="paper", **section).training.steps == 7
    last = experiment({"steps": "9"}, preset="paper", **section).training
    assert (last.steps, last.warmup, last.images_per_domain) == (9, 2, 256)


def test_a_setting_is_assigned_by_its_name_with_or_without_its_section() -> None:
    assert experiment({"beta": 0.5}) == experiment({"method.beta": "0.5"})
    assert experiment({"beta": 0.5}) == experiment(method={"beta": 0.5})
    changed = experiment({"flip": 0.25, "evaluation.repeats": 3, "training.steps": 5})
    assert (changed.augmentation.flip, changed.evaluation.repeats, changed.training.steps) == (0.25, 3, 5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_setting_has_the_name_of_one_in_another_section(algorithm: str) -> None:
    whole = experiment(algorithm=algorithm)
    names = [name for section in SECTIONS for name in names_of(type(getattr(whole, section)))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("values", "assignments", "complaint"),
    [
        ({"dataset": ""}, {}, "no dataset is given"),
        ({"target": ""}, {}, "no target is given"),
        ({"algorithm": "metavip"}, {}, "unknown algorithm 'metavip'; did you mean 'metavib'"),
        ({"preset": "papers"}, {}, "unknown preset 'papers'; did you mean 'paper'"),
        ({"backbone": "resnet19"}, {}, "unknown backbone 'resnet19'; did you mean 'resnet18'"),
        ({"sead": 1}, {}, "unknown key 'sead'; did you mean 'seed'"),
        ({"training": {"step": 1}}, {}, "unknown training setting 'step'; did you mean 'steps'"),
        ({"training": 5}, {}, "training must hold settings, not 5"),
        ({"training": {"steps": 0}}, {}, "steps must be"),
        ({}, {"bta": 1}, "unknown setting 'bta'; did you mean 'beta'"),
        ({}, {"training.beta": 1}, "unknown setting 'training.beta'"),
        ({"algorithm": "erm"}, {"beta": 1}, "unknown setting 'beta'"),
        ({}, {"beta": -1}, "beta must be a number from 0"),
    ],
)
def test_a_mistake_is_named(values: dict[str, Any], assignments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as error:
        experiment(assignments, **values)
    assert complaint in str(error.value)


@pytest.mark.parametrize(("seed", "taken"), [(0, 0), ("12", 12), (2**63 - 1, 2**63 - 1)])
def test_a_seed_is_a_whole_number(seed: Any, taken: int) -> None:
    assert experiment(seed=seed).seed == taken


@pytest.mark.parametrize("seed", [None, -1, 2**63, 1.0, "1.5", "one", True, [1], ""])
def test_no_other_seed_is_taken(seed: Any) -> None:
    with pytest.raises(UserError, match="seed"):
        experiment(seed=seed)


def test_identity_is_that_of_everything_but_the_name_of_the_preset() -> None:
    base = experiment(preset="fast")
    settings = {section: base.to_json()[section] for section in SECTIONS}
    assert experiment(preset="paper", **settings).identity() == base.identity()
    others = [
        experiment(seed=2),
        experiment(target="photo"),
        experiment(dataset="vlcs"),
        experiment(algorithm="vib"),
        experiment(backbone="resnet18"),
        experiment(weights="none"),
        experiment(protocol="other"),
        *[
            experiment({name: value})
            for name, value in {"steps": 9, "beta": 1, "flip": 1, "repeats": 1}.items()
        ],
    ]
    assert len({base.identity(), *(other.identity() for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("photo", ("photo",)),
        ("photo, cartoon,", ("cartoon", "photo")),
        (["photo", "cartoon", "photo"], ("cartoon", "photo")),
        (["a, b"], ("a, b",)),  # a list may name a domain with a comma
        ([15, 0], ("0", "15")),  # angles, as YAML reads them
        (0, ("0",)),
    ],
    ids=str,
)
def test_domains_to_leave_out_are_a_list_or_a_text(given: Any, taken: tuple[str, ...]) -> None:
    assert experiment(without=given).without == taken


@pytest.mark.parametrize("given", [1.5, True, {"photo": 1}], ids=str)
def test_nothing_else_names_domains_to_leave_out(given: Any) -> None:
    with pytest.raises(UserError, match="without must be names of domains"):
        experiment(without=given)


def test_the_domains_that_are_left_out_decide_and_their_order_does_not() -> None:
    one, other = experiment(without="photo,cartoon"), experiment(without=["cartoon", "photo"])
    assert one.identity() == other.identity()
    assert len({e.identity() for e in (one, experiment(), experiment(without="photo"))}) == 3
    told = differences(experiment(), experiment(without="photo"))
    assert told == ["without () against ('photo',)"]


def test_differences_are_told_by_name_and_both_values() -> None:
    mine, other = experiment(), experiment({"steps": 9, "beta": 0.5}, seed=2, preset="paper")
    told = differences(mine, experiment({"steps": 9, "beta": 0.5}, seed=2))
    assert told == ["method.beta 0.001 against 0.5", "seed 1 against 2", "training.steps 1000 against 9"]
    assert differences(mine, mine) == []
    assert not any("preset" in difference for difference in differences(mine, other))
    assert "method.beta 0.001 against None" in differences(mine, experiment(algorithm="erm"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_of_the_experiment_reads_back_as_the_same_one(
    algorithm: str, suffix: str, tmp_path: Path
) -> None:
    awkward = {"target": "no: #1 'ö' \\ \n", "dataset": "/a b/~", "protocol": "null", "seed": 2**63 - 1}
    settings = {"learning_rate": 1e-5, "selection": "last", "average": "ema"}
    mine = experiment(settings, algorithm=algorithm, without=["a, b", "null"], **awkward)
    path = tmp_path / f"experiment.{suffix}"
    path.write_text(to_yaml(mine) if suffix == "yaml" else json.dumps(mine.to_json()), encoding="utf-8")
    assert experiment_from(read_config(path)) == mine


def test_weights_follow_the_backbone_unless_they_are_given() -> None:
    assert experiment(backbone="resnet18").weights == "imagenet"
    assert experiment(backbone="digits").weights == "none"
    assert experiment(backbone="alexnet-paper").weights == "none"
    assert experiment(backbone="resnet18", weights="none").weights == "none"
    for name, kind in BACKBONES.items():
        published = kind.imagenet_weights is not None or bool(kind.weight_files)
        assert (experiment(backbone=name).weights == "imagenet") == published


@pytest.mark.parametrize(
    ("algorithm", "kept"),
    [
        ("erm", {"steps": 1, "betta": 2}),
        ("vib", {"steps": 1, "betta": 2, "beta": 3, "method.beta": 4}),
        ("baseline", {"steps": 1, "betta": 2}),
        ("metavib", {"steps": 1, "betta": 2, "beta": 3, "method.beta": 4, "kl_direction": 5}),
    ],
)
def test_assignments_for_several_algorithms_are_shared_out(algorithm: str, kept: dict[str, int]) -> None:
    given = {"steps": 1, "betta": 2, "beta": 3, "method.beta": 4, "kl_direction": 5}
    assert shared_out(given, algorithm, ["erm", "vib", "baseline", "metavib"]) == kept


def test_what_none_of_the_algorithms_has_is_left_for_an_error() -> None:
    assert shared_out({"beta": 1}, "erm", ["erm"]) == {"beta": 1}
