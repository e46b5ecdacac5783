"""Which runs of a grid may be stacked."""

from dataclasses import replace

import pytest

from metavib.runs.cells import stack_key


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "art"},
        {"seed": 2},
        {"beta": 0.5},
        {"learning_rate": 0.5},
        {"backbone_rate": 0.5},
        {"initialisation": "torch"},
        {"schedule": "constant"},
        {"warmup": 3},
        {"clip_norm": 0.0},
        {"validation_share": 0.3},
        {"patience": 1},
        {"selection": "last"},
        {"selection": "oracle"},
    ],
    ids=str,
)
def test_runs_that_differ_in_numbers_only_may_be_stacked(cell, changes):
    first, other = cell(algorithm="metavib"), cell(algorithm="metavib", **changes)
    assert first.experiment.identity() != other.experiment.identity()
    assert stack_key(first.experiment) == stack_key(other.experiment)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "vib"},
        {"backbone": "digits-domainbed"},
        {"steps": 5},
        {"images_per_domain": 9},
        {"domains_per_episode": 2},
        {"class_balanced": False},
        {"weight_decay": 0.1},
        {"validations": 3},
        {"precision": "float32"},
        {"average": "ema"},
        {"average_decay": 0.9},
        {"record_information": 2},
        {"latent_width": 17},
        {"latent_draws": 3},
        {"feature_size": 2.0},
        {"kl_direction": "prior-to-posterior"},
        {"flip": 0.25},
    ],
    ids=str,
)
def test_runs_of_different_shapes_or_ways_may_not(cell, changes):
    first, other = cell(algorithm="metavib"), cell(**{"algorithm": "metavib"} | changes)
    assert stack_key(first.experiment) != stack_key(other.experiment)


def test_where_the_settings_came_from_does_not_matter(cell):
    experiment = cell().experiment
    assert stack_key(experiment) == stack_key(replace(experiment, preset="another"))


def test_runs_without_as_many_domains_may_be_stacked_and_others_may_not(cell):
    art, photo, both, none = (
        stack_key(replace(cell().experiment, without=names))
        for names in (("art",), ("photo",), ("art", "photo"), ())
    )
    assert art == photo
    assert len({art, both, none}) == 3
