"""The model card: read by the hub's own library, with the numbers of the results."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard
from made_up_results import results_like

from metavib.models.calibration import Calibration
from metavib.models.card import model_card
from metavib.models.directory import ModelDescription, TakenImages

DESCRIPTION = ModelDescription(
    algorithm="metavib",
    method={"beta": 0.01},
    backbone="digits",
    frozen_normalisation=False,
    classes=("cat", "dog"),
    source_domains=("art", "photo"),
    unseen_domain="sketch",
    preprocessing=TakenImages(28, 1, (0.0,), (1.0,)),
    seed=1,
    experiment="e",
    split="s",
    calibration=Calibration(6, (0.0,) * 101, (0.0,) * 101, 1.0),
)


def measured(images=8):
    names = ("class_averaged_accuracy", "accuracy", "nll", "ece", "brier")
    values = {name: {"mean": 0.5 + number / 10, "deviation": 0.01} for number, name in enumerate(names)}
    return {"images": images, "measured_by": "20 repeats", **values}


RESULTS = {
    "classes": ["cat", "dog"],
    "unseen_domain": "sketch",
    "dataset": "pets",
    "protocol": "folder",
    "experiment": "e",
    "split": "s",
    "preset": "fast",
    "steps": 3000,
    "seed": 1,
    "selection": "source-validation",
    "average": "none",
    "weights": "none",
    "without": [],
    "unseen": measured(),
    "source_validation": measured(6),
    "unsure": {"coverage": 0.9, "answered": 0.625, "accuracy": 0.8},
}


def test_the_card_of_a_run_is_read_by_the_hubs_library(finished):
    card = ModelCard((finished.run / "model" / "README.md").read_text())
    results = json.loads((finished.run / "results.json").read_text())
    assert card.data.library_name == "metavib"
    assert card.data.pipeline_tag == "image-classification"
    assert "domain-generalization" in card.data.tags
    found = {one.metric_name: one.metric_value for one in card.data.eval_results}
    expected = results["unseen"]["class_averaged_accuracy"]["mean"]
    assert found["class-averaged accuracy"] == pytest.approx(expected, abs=1e-4)
    assert "license" not in card.data.to_dict()


def test_the_card_of_a_run_says_nothing_of_this_machine(finished):
    text = (finished.run / "model" / "README.md").read_text()
    assert str(finished.run.parent) not in text
    assert "/tmp" not in text  # noqa: S108


def test_the_card_has_data_protocol_results_use_and_limits():
    text = model_card(DESCRIPTION, results_like(**RESULTS))
    for section in ("Data", "Protocol", "Results", "Use", "Limits"):
        assert f"\n## {section}\n" in text
    assert "| accuracy | 0.6000 +- 0.0100 | 0.6000 +- 0.0100 |" in text
    assert "62.5% of the unseen images were answered, of which 80.0% were right" in text
    assert "3,000 steps, seed 1" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selection": "oracle"}, "not a fair comparison"),
        ({"without": ["x"]}, "played no part: `x`"),
        ({"source_validation": None, "unsure": None}, "no source validation images"),
        (
            {"unsure": {"coverage": 0.9, "answered": 0.0, "accuracy": None}},
            "0.0% of the unseen images were answered;",
        ),
        ({"weights": "/home/me/secret.safetensors"}, "first weights: a file"),
    ],
    ids=str,
)
def test_what_a_reader_must_know_is_said(changes, words):
    text = model_card(DESCRIPTION, results_like(**RESULTS | changes))
    assert words in text
    assert "secret" not in text


def test_a_model_without_thresholds_says_so():
    assert "keeps no thresholds" in model_card(
        replace(DESCRIPTION, calibration=None), results_like(**RESULTS)
    )


@pytest.mark.parametrize("name", ['a: "b" # c', "- x", "[y]", "é|`z`", "null", "1e3", "@at", "%"])
def test_no_name_breaks_the_header_or_the_table(name):
    description = replace(DESCRIPTION, unseen_domain=name, classes=(name, "dog"))
    text = model_card(description, results_like(**RESULTS | {"dataset": name}))
    (result, *_) = ModelCard(text).data.eval_results
    assert result.dataset_type == name
    (head,) = [line for line in text.splitlines() if line.startswith("| measure")]
    assert head.count("|") == 4


def test_a_measure_that_came_after_the_results_is_said_to_be_absent():
    before = {name: value for name, value in measured().items() if name != "brier"}
    text = model_card(DESCRIPTION, results_like(**RESULTS | {"unseen": before}))
    assert "| Brier score | not measured | 0.9000 +- 0.0100 |" in text
    assert (
        "Brier" not in ModelCard(text).data.to_dict()["model-index"][0]["results"][0]["metrics"][-1]["name"]
    )
