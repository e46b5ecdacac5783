"""`metavib describe`: everything has an explanation."""

import json

import pytest

from metavib.algorithms import ALGORITHMS
from metavib.core.settings import names_of
from metavib.data.sources.catalog import NAMES
from metavib.nn.backbones import BACKBONES
from metavib.nn.networks import FORMS
from metavib.training.experiment import experiment_from
from metavib.training.recipes import PRESETS

SECTIONS = ("training", "augmentation", "evaluation")


def test_the_overview_names_everything_with_a_line_each(metavib):
    status, out, err = metavib("describe", "--json")
    overview = json.loads(out)
    assert status == 0
    assert list(overview["algorithms"]) == list(ALGORITHMS)
    assert set(NAMES) < set(overview["datasets"])
    assert list(overview["backbones"]) == [*BACKBONES, *FORMS]
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


@pytest.mark.parametrize("file", ["experiment.json", "results.json", "model/config.json"])
def test_what_a_newer_version_wrote_is_refused(refused, finished_copy, file):
    path = finished_copy.run / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))
    place = path.parent if "model" in file else finished_copy.run
    assert f"{path} was written by a newer version of metavib (format 9" in refused("describe", place)


def test_a_model_is_described(metavib, finished):
    _, out, _ = metavib("describe", finished.run / "model", "--json")
    description = json.loads(out)
    assert description["classes"] == ["cat", "dog"]
    assert description["unseen_domain"] == "sketch"


def test_an_unknown_name_is_suggested_the_nearest(refused):
    assert "did you mean 'squeezenet'" in refused("describe", "sqeezenet")


def test_the_quantiles_of_a_model_are_told_in_a_few_words(metavib, finished):
    _, out, _ = metavib("describe", finished.run / "model")
    assert out.count("(101 quantiles)") == 2
    assert max(map(len, out.splitlines())) < 300


@pytest.mark.parametrize("name", ["fast", "training", "augmentation", "metavib"])
def test_settings_are_those_that_the_preset_gives_for_the_data(metavib, name):
    def values(*more):
        settings = json.loads(metavib("describe", name, "--json", *more).out)["settings"]
        return {one["name"]: one["given"] for one in settings}

    either, photographs, digits = values(), values("--dataset", "pacs"), values("--dataset", "rotated-digits")
    for setting, given in either.items():
        assert given["photographs"] == photographs[setting]["pacs"]
        assert given["digits"] == digits[setting]["rotated-digits"]
    assert either != values(*(["--algorithm", "erm"] if name == "fast" else ["--preset", "paper"]))


def test_what_a_run_gets_is_what_describe_says(metavib, folder):
    experiment = experiment_from({"dataset": str(folder), "target": "photo", "algorithm": "vib", "seed": 0})
    flags = ("--dataset", folder, "--algorithm", "vib", "--json")
    for section in ("training", "augmentation", "evaluation"):
        settings = json.loads(metavib("describe", section, *flags).out)["settings"]
        assert {one["name"]: one["given"][str(folder)] for one in settings} == experiment.to_json()[section]
    fast = json.loads(metavib("describe", "fast", *flags).out)
    assert fast["backbone"] == {str(folder): f"{experiment.backbone}, weights: {experiment.weights}"}


def test_a_setting_by_itself_has_its_owners_and_the_values_of_all_presets(metavib):
    status, out, _ = metavib("describe", "beta", "--json")
    beta = json.loads(out)
    assert status == 0
    assert set(beta["meaning"]) == {"vib", "metavib"}
    given = beta["presets, of metavib"]
    assert list(given) == list(PRESETS)
    assert given["paper"] == {"photographs": 0.01, "digits": 0.001}
    steps = json.loads(metavib("describe", "steps", "--json", "--dataset", "pacs").out)
    assert steps["presets, of training"]["paper"] == {"pacs": 25_000}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dataset", "no/such/place"], "no/such/place"),
        (["--preset", "papre"], "did you mean 'paper'"),
        (["--algorithm", "metavid"], "did you mean 'metavib'"),
    ],
)
def test_names_beside_it_are_checked(refused, flags, words):
    assert words in refused("describe", "training", *flags)
