"""The table of figures: models are asked once, and what cannot be drawn says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metavib.core.errors import UserError
from metavib.reports.figure import Figure, Missing
from metavib.reports.judged import Material, draw
from metavib.runs.records import Group

CPU = torch.device("cpu")


@pytest.fixture
def material(record, judged, monkeypatch):
    """Two runs, of which the model of the second is gone; `wanted` says whose answers were asked for."""
    runs = (record("metavib"), record("erm"))
    wanted = []

    def judge(run, data_root, device, own):
        wanted.append(run.title)
        if run.experiment.algorithm == "erm":
            raise UserError("the model is gone.")
        return judged(algorithm=run.experiment.algorithm)

    monkeypatch.setattr("metavib.reports.judged.judge", judge)
    made = Material(Group("d", "p", ("a", "b", "c"), runs), None, CPU)
    made.wanted = wanted
    return made


def test_models_are_asked_once_for_all_figures_and_not_for_the_log(material):
    draw(material, ["training"])
    assert material.wanted == []
    draw(material, ["confusion", "cases"])
    assert material.wanted == ["MetaVIB", "ERM"]


def test_a_model_that_is_gone_is_named_and_the_others_are_drawn(material):
    (figure,) = draw(material, ["confusion"])
    assert isinstance(figure, Figure)
    assert {row[0] for row in figure.rows} == {"MetaVIB"}
    (problem,) = material.unjudged
    assert (problem.path.name, problem.why) == ("erm-0-0", "the model is gone.")


def test_where_all_models_are_gone_the_reason_stands_in_place_of_the_figures(material):
    alone = Material(Group("d", "p", ("a",), material.group.runs[1:]), Path("data"), CPU)
    missing = draw(alone, ["confusion", "cases"])
    assert [one.name for one in missing] == ["confusion", "cases"]
    assert all(isinstance(one, Missing) and "the model is gone." in one.why for one in missing)


def test_a_figure_that_cannot_be_drawn_says_why(material, monkeypatch):
    def impossible(runs):
        raise UserError("it needs something.")

    monkeypatch.setattr("metavib.reports.training.training", impossible)
    assert draw(material, ["training"]) == [Missing("training", "Training", "it needs something.")]


def test_progress_is_told(material):
    done = []
    draw(material, ["training", "confusion"], done.append)
    assert done == [0, 1, 2]
