"""`metavib describe`: everything has an explanation."""

import json

import pytest

from metavib.algorithms import ALGORITHMS
from metavib.data.catalog import NAMES
from metavib.networks.backbones import BACKBONES
from metavib.recipes import PRESETS
from metavib.settings import names_of

SECTIONS = ("training", "augmentation", "evaluation")


def test_the_overview_names_everything_with_a_line_each(metavib):
    status, out, err = metavib("describe", "--json")
    overview = json.loads(out)
    assert status == 0
    assert list(overview["algorithms"]) == list(ALGORITHMS)
    assert set(NAMES) < set(overview["datasets"])
    assert list(overview["backbones"]) == list(BACKBONES)
    assert list(overview["presets"]) == list(PRESETS)
    for section in overview.values():
        for name, text in section.items():
            assert text
            assert name in err


@pytest.mark.parametrize("name", [*ALGORITHMS, *NAMES, *BACKBONES, *PRESETS, *SECTIONS])
def test_every_name_has_an_explanation(metavib, name):
    status, out, err = metavib("describe", name, "--json")
    description = json.loads(out)
    assert status == 0
    assert name in description.values()
    assert description["text"].splitlines()[0] in err


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_of_an_algorithm_is_explained(metavib, name):
    _, out, _ = metavib("describe", name, "--json")
    settings = json.loads(out)["settings"]
    assert [setting["name"] for setting in settings] == list(names_of(ALGORITHMS[name].Config))
    assert all(setting["meaning"] and setting["takes"] for setting in settings)


def test_a_run_is_described_with_its_results(metavib, finished):
    _, out, err = metavib("describe", finished.run, "--json")
    description = json.loads(out)
    assert description["experiment"]["target"] == "sketch"
    assert description["results"] == json.loads((finished.run / "results.json").read_text())
    assert "sketch" in err
    assert not set('{}[]"') & set(err)  # for people: no JSON
    measured = description["results"]["unseen"]["accuracy"]
    assert f"{measured['mean']:.4f} +- {measured['deviation']:.4f}" in err


def test_an_unfinished_run_is_described_without_results(metavib, interrupted, training, tmp_path):
    interrupted(*training(), after=1)
    _, out, _ = metavib("describe", tmp_path / "run", "--json")
    assert json.loads(out)["results"] is None


def test_a_model_is_described(metavib, finished):
    _, out, _ = metavib("describe", finished.run / "model", "--json")
    description = json.loads(out)
    assert description["classes"] == ["cat", "dog"]
    assert description["unseen_domain"] == "sketch"


def test_an_unknown_name_is_suggested_the_nearest(refused):
    assert "did you mean 'squeezenet'" in refused("describe", "sqeezenet")


def test_the_quantiles_of_a_model_are_told_in_a_few_words(metavib, finished):
    _, _, err = metavib("describe", finished.run / "model")
    assert err.count("(101 quantiles)") == 2
    assert max(map(len, err.splitlines())) < 300
