"""Exported models answer as the original does, for any number of images and of draws."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import metavib
from metavib.algorithms import ALGORITHMS
from metavib.core.errors import UserError
from metavib.data.transforms import with_channels
from metavib.models.calibrating import fitted
from metavib.models.directory import ModelDescription, TakenImages, preprocessing_of, save_model
from metavib.models.look import embedded_with_look, fitted_look
from metavib.models.measuring import shared_noise
from metavib.models.source_features import SourceFeatures
from metavib.nn.backbones import BACKBONES
from metavib.nn.watching import Place
from metavib.serving import export as exporter
from metavib.serving.export import TOLERANCE, export

pytestmark = pytest.mark.whole

CLASSES = ("cat", "dog", "eel")


@pytest.fixture
def model(tmp_path):
    """Writes a model directory of first weights, with class means of its own."""

    def make(algorithm="metavib", backbone="digits", *, calibrated=False):
        torch.manual_seed(0)
        kind = ALGORITHMS[algorithm]
        method = {} if algorithm == "erm" else {"latent_width": 16, "latent_draws": 3, "classifier_draws": 4}
        built = kind(BACKBONES[backbone](), len(CLASSES), kind.Config(**method))
        if algorithm != "erm":
            means = torch.randn_like(built.class_features)
            inferred = built.infer_classifier(means)
            built.class_features.copy_(means)
            built.classifier_mean.copy_(inferred.mean.detach())
            built.classifier_log_variance.copy_(inferred.log_variance.detach())
        description = ModelDescription(
            algorithm=algorithm,
            method=method,
            backbone=backbone,
            frozen_normalisation=False,
            classes=CLASSES,
            source_domains=("art", "photo"),
            unseen_domain="sketch",
            preprocessing=TakenImages(*preprocessing_of(built.backbone)),
            seed=0,
            experiment="e",
            split="s",
            domain_calibration=calibration_of(built) if calibrated else None,
        )
        save_model(tmp_path / "model", built, description)
        return tmp_path / "model"

    return make


@torch.no_grad()
def calibration_of(algorithm):
    """Across three domains of noise, of which the last classes are brighter."""
    draw = torch.Generator().manual_seed(0)
    place, labels = Place("passed", 1), torch.arange(60) % len(CLASSES)
    parts = {}
    for number, name in enumerate(("art", "photo", "sketch")):
        images = 0.1 * number + 0.2 * labels.view(-1, 1, 1, 1) + torch.rand(60, 1, 28, 28, generator=draw)
        parts[name] = embedded_with_look(algorithm, images, place)
    sources = {name: (features, labels) for name, (features, _) in parts.items()}
    look = fitted_look(place, {name: seen for name, (_, seen) in parts.items()})
    return fitted(
        algorithm, SourceFeatures(sources, sources, {}, parts["art"][0], (), least_contrast=0.05, look=look)
    )


def pictures(predictor, count):
    side = predictor.preprocessing.size
    drawn = np.random.default_rng(count).integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    return with_channels(drawn, predictor.preprocessing.channels)


def noise_of(predictor):
    noise = shared_noise(predictor.algorithm, 0, torch.device("cpu"))
    return noise["classifier"].numpy(), noise["latent"][:, 0].numpy()


@pytest.mark.parametrize(
    ("algorithm", "backbone"),
    [
        ("erm", "digits"),
        ("baseline", "digits"),
        ("vib", "digits"),
        ("metavib", "digits"),
        ("metavib", "squeezenet"),
    ],
)
def test_onnxruntime_says_what_the_predictor_says(model, tmp_path, algorithm, backbone):
    path = model(algorithm, backbone)
    exported = export(path, "onnx", tmp_path / "out")
    assert 0 < exported.largest_difference < TOLERANCE
    for mode in ("mean", "sampled"):
        predictor = metavib.load(path, mode=mode, device="cpu")
        if algorithm == "erm" and mode == "sampled":
            assert not (tmp_path / "out" / "sampled.onnx").exists()
            continue
        session = onnxruntime.InferenceSession(tmp_path / "out" / f"{mode}.onnx")
        for count in (1, 5):
            images = pictures(predictor, count)
            inputs = {"images": images}
            if mode == "sampled":
                inputs["classifier_noise"], inputs["latent_noise"] = noise_of(predictor)
            names = [output.name for output in session.get_outputs()]
            found = dict(zip(names, session.run(None, inputs), strict=True))
            expected = predictor.predict(images)
            for number, answer in enumerate(expected):
                own = list(answer.probabilities.values())
                assert found["probabilities"][number] == pytest.approx(own, abs=1e-4)
                assert found["entropy"][number] == pytest.approx(answer.entropy, abs=1e-4)
                if mode == "sampled":
                    assert found["model_entropy"][number] == pytest.approx(answer.model_entropy, abs=1e-4)
                    drawn = found["by_classifier"][:, number]
                    assert drawn == pytest.approx(np.array(answer.classifiers), abs=1e-4)


@pytest.mark.parametrize("algorithm", ["erm", "metavib"])
def test_a_calibrated_model_says_in_onnx_what_the_predictor_says(model, tmp_path, algorithm):
    path = model(algorithm, calibrated=True)
    export(path, "onnx", tmp_path / "out")
    told = json.loads((tmp_path / "out" / "onnx.json").read_text())["calibrated_across_domains"]
    predictor = metavib.load(path, mode="mean", device="cpu", coverage=0.9, sets=0.9)
    images = np.concatenate([pictures(predictor, 4), np.zeros((1, 1, 28, 28), np.uint8)])
    session = onnxruntime.InferenceSession(tmp_path / "out" / "mean.onnx")
    names = [output.name for output in session.get_outputs()]
    assert names == ["probabilities", "entropy", "distance", "look"]
    found = dict(zip(names, session.run(None, {"images": images}), strict=True))
    expected = predictor.classify(images)
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-4)
    assert found["distance"] == pytest.approx(expected.from_sources, rel=1e-3)
    foreign = found["distance"] > told["foreign_above_distance"]
    foreign |= found["look"] > told["foreign_above_look"]
    assert foreign.tolist() == expected.foreign.tolist()
    assert foreign[-1]  # nothing is on it
    below = told["unsure_below_confidence"]["coverage_90"]["confidence"]
    confidence = found["probabilities"].max(axis=1)
    assert (confidence < below - 1e-6).tolist() == expected.unsure.tolist()
    in_set = 1 - found["probabilities"] <= told["sets_90_up_to"] + 1e-6
    assert (in_set | (found["probabilities"] == confidence[:, None])).tolist() == expected.sets.tolist()


def test_the_number_of_draws_is_the_callers(model, tmp_path):
    export(model(), "onnx", tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "sampled.onnx")
    predictor = metavib.load(tmp_path / "model", device="cpu")
    images = pictures(predictor, 2)
    for classifier_draws, latent_draws in ((1, 1), (7, 2)):
        noise = {
            "classifier_noise": np.zeros((classifier_draws, 3, 16), np.float32),
            "latent_noise": np.zeros((latent_draws, 16), np.float32),
        }
        probabilities, _, model_entropy, by_classifier = session.run(None, {"images": images, **noise})
        assert by_classifier.shape == (classifier_draws, 2, 3)
        at_mean = [
            list(answer.probabilities.values())
            for answer in metavib.load(tmp_path / "model", mode="mean").predict(images)
        ]
        assert probabilities == pytest.approx(np.array(at_mean), abs=1e-4)  # no noise: every draw is the mean
        assert model_entropy == pytest.approx(0, abs=1e-5)


def test_a_program_of_torch_export_says_the_same(model, tmp_path):
    exported = export(model(), "torch-export", tmp_path / "out")
    assert exported.largest_difference <= TOLERANCE
    assert {path.name for path in exported.files} == {"mean.pt2", "sampled.pt2", "torch-export.json"}
    extra = {"metavib.json": ""}
    program = torch.export.load(tmp_path / "out" / "mean.pt2", extra_files=extra).module()
    assert json.loads(extra["metavib.json"])["classes"] == list(CLASSES)
    predictor = metavib.load(tmp_path / "model", mode="mean", device="cpu")
    for count in (1, 5):
        images = pictures(predictor, count)
        probabilities, _ = program(torch.from_numpy(images))
        own = [list(answer.probabilities.values()) for answer in predictor.predict(images)]
        assert probabilities.detach().numpy() == pytest.approx(np.array(own), abs=1e-4)


def test_what_a_program_must_know_is_in_the_file_and_beside_it(model, tmp_path):
    export(model(), "onnx", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "onnx.json").read_text())
    assert facts["classes"] == list(CLASSES)
    assert facts["image"]["size"] == 28
    assert facts["draws"] == {"classifier_noise": 4, "latent_noise": 3}
    assert facts["default_variant"] == "mean"  # what a predictor answers by default
    shapes = {name: one["shape"] for name, one in facts["variants"]["sampled"]["inputs"].items()}
    assert shapes == {
        "images": ["batch", 1, 28, 28],
        "classifier_noise": ["classifier_draws", 3, 16],
        "latent_noise": ["latent_draws", 16],
    }
    for name in ("mean", "sampled"):
        graph = onnx.load(tmp_path / "out" / f"{name}.onnx")
        onnx.checker.check_model(graph)
        properties = {one.key: json.loads(one.value) for one in graph.metadata_props}
        assert properties["classes"] == list(CLASSES)
        assert properties["image"] == facts["image"]
        described = onnxruntime.InferenceSession(tmp_path / "out" / f"{name}.onnx").get_inputs()
        assert {one.name: one.shape for one in described} == {
            key: value["shape"] for key, value in facts["variants"][name]["inputs"].items()
        }
        assert described[0].type == "tensor(uint8)"
        assert not any(node.op_type.startswith("Random") for node in graph.graph.node)


def test_nothing_is_left_where_the_answers_differ(model, tmp_path, monkeypatch):
    path = model()
    honest = exporter.Mean.forward

    def lies(self, images):
        probabilities, entropy = honest(self, images)
        off = 0.0 if torch.compiler.is_exporting() else 2e-4
        return probabilities + off, entropy

    monkeypatch.setattr(exporter.Mean, "forward", lies)
    with pytest.raises(UserError, match=r"differs from the model by 2\.0e-04"):
        export(path, "onnx", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_prediction_after_an_export_is_as_before(model, tmp_path):
    path = model(backbone="squeezenet")
    images = pictures(metavib.load(path), 1)
    before = metavib.load(path).predict(images)
    export(path, "torch-export", tmp_path / "out")
    assert metavib.load(path).predict(images) == before


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_libraries_the_extra_is_named(model, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r"metavib\[export\]"):
        export(model(), "onnx", tmp_path / "out")
    assert export(tmp_path / "model", "torch-export", tmp_path / "out").files


def test_a_file_in_the_place_of_the_folder_is_named(model, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        export(model(), "onnx", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
