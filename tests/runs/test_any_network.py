"""What runs promise holds with any network: a convolutional one, an EfficientNet and a transformer of timm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from pair_of_processes import Torchrun
from places import ROOT
from small_networks import Plain
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

import metavib as package
from metavib.core.errors import UserError
from metavib.data.store import storage
from metavib.nn.networks import build_backbone
from metavib.nn.probing import fault_of_second_order, probe_images
from metavib.serving.predictor import MODES

timm = pytest.importorskip("timm")

NETWORKS = ["timm:test_resnet", "timm:test_efficientnet", "timm:test_vit"]
SIDE = 32
OWN = "small_networks:plain"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests"), *sys.path])


@pytest.fixture
def with_network(training: Callable[..., list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a short run with this network."""

    def arguments(name: str, *more: Any, out: Any = tmp_path / "run") -> list[str]:
        return training("--backbone", name, "--image-size", SIDE, *more, out=out)

    return arguments


def what_counts(run: Path) -> tuple[bytes, bytes]:
    return (run / "model" / "model.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "name", [NETWORKS[0], *(pytest.param(name, marks=pytest.mark.whole) for name in NETWORKS[1:])]
)
def test_going_on_equals_never_stopping_and_the_model_answers_again(
    name: str, metavib: Any, interrupted: Any, with_network: Any, tmp_path: Path, folder: Path
) -> None:
    assert metavib(*with_network(name, out=tmp_path / "unstopped")).status == 0
    interrupted(*with_network(name), after=2)
    assert not (tmp_path / "run" / "results.json").exists()
    assert metavib("train", "--out", tmp_path / "run").status == 0
    assert what_counts(tmp_path / "run") == what_counts(tmp_path / "unstopped")
    predictor = package.load(tmp_path / "run", device="cpu")
    assert predictor.preprocessing.size == SIDE
    says = timm.models.get_pretrained_cfg(name.removeprefix("timm:"))
    assert predictor.preprocessing.interpolation == says.interpolation
    predictor.save_pretrained(tmp_path / "again")
    images = sorted(folder.rglob("*.png"))[:3]
    first, second = predictor(images), package.load(tmp_path / "again", device="cpu")(images)
    assert first == second
    assert metavib("evaluate", tmp_path / "run").status == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_networks_equal_the_networks_one_by_one(name: str) -> None:
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(build_backbone(name, image_size=SIDE).double())
    for network in networks:
        network.stacked = True
    parameters, buffers = stack_module_state(networks)  # type: ignore[arg-type]
    images = probe_images(3, SIDE).double()

    def objective(own: dict[str, Tensor], kept: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = functional_call(networks[0], (own, kept), (images,))
        return features.square().sum(), features

    gradients, features = vmap(grad(objective, has_aux=True))(parameters, buffers)
    for index, network in enumerate(networks):
        network.stacked = False  # attention is fused when a run is alone
        expected = network(images)
        torch.testing.assert_close(features[index], expected)
        named = dict(network.named_parameters())
        found = torch.autograd.grad(expected.square().sum(), list(named.values()))
        for key, gradient in zip(named, found, strict=True):
            torch.testing.assert_close(gradients[key][index], gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_second_derivatives_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, image_size=SIDE).double()
    backbone.twice_differentiable = True
    images = probe_images(3, SIDE).double()
    assert fault_of_second_order(backbone, images) is None
    # Not at the first weights: some blocks begin with a weight of zero, where ReLU has a kink.
    first = {
        key: value.detach() + 0.05 * torch.randn_like(value) for key, value in backbone.named_parameters()
    }
    direction = {key: 1e-3 * torch.randn_like(value) for key, value in first.items()}

    def gradient(own: dict[str, Tensor]) -> dict[str, Tensor]:
        return grad(lambda given: functional_call(backbone, given, (images,)).square().mean())(own)

    _, along = torch.func.vjp(gradient, first)
    (product,) = along(direction)
    step = 1e-4
    ahead, behind = (
        gradient({key: value + sign * step * direction[key] for key, value in first.items()})
        for sign in (1, -1)
    )
    difference = torch.cat([((ahead[key] - behind[key]) / (2 * step)).flatten() for key in first])
    exact = torch.cat([product[key].flatten() for key in first])
    assert (difference - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("algorithm", ["mldg", "epi_fcr", "low_rank"])
def test_methods_that_differentiate_twice_or_copy_the_network(
    name: str, algorithm: str, metavib: Any, with_network: Any, folder: Path, tmp_path: Path
) -> None:
    words = ["train", folder, "--out", tmp_path / "run", "--algorithm", algorithm, "--target", "sketch"]
    words += ["--backbone", name, "--image-size", SIDE, "--weights", "none", "--seed", 0, "--steps", 1]
    words += ["--set", "images_per_domain=2", "--set", "validations=1", "--set", "repeats=2"]
    status, _, err = metavib(*words)
    assert status == 0, err


@pytest.mark.stacks
@pytest.mark.parametrize("name", NETWORKS)
def test_a_grid_is_trained_as_one_program(name: str, metavib: Any, with_network: Any, tmp_path: Path) -> None:
    words = with_network(name, "--set", "validations=1", out=tmp_path / "grid")
    at = words.index("--seed")
    words[at : at + 2] = ["--seeds", "2"]
    status, _, err = metavib(*words, "--batch", 2)
    assert status == 0, err
    assert "follow each other" not in err
    alone = with_network(name, "--set", "validations=1", out=tmp_path / "alone")
    assert metavib(*alone).status == 0
    (stacked,) = (tmp_path / "grid").glob("*seed1")
    for own, other in zip(*(_losses(run) for run in (stacked, tmp_path / "alone")), strict=True):
        assert own == pytest.approx(other, rel=1e-3)


def _losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found = [line["classification"] for line in lines]
    assert found
    return found


def test_what_cannot_be_stacked_runs_one_after_another(
    metavib: Any, with_network: Any, tmp_path: Path
) -> None:
    words = with_network("small_networks:Rare", "--algorithm", "erm", "--steps", 1, out=tmp_path / "grid")
    words = [
        word for word in words if word not in ("latent_draws=2", "classifier_draws=2", "latent_width=16")
    ]
    words = _without_bare_set(words)
    at = words.index("--seed")
    words[at : at + 2] = ["--seeds", "2"]
    status, _, err = metavib(*words, "--batch", 2)
    assert status == 0, err
    assert "runs with small_networks:Rare follow each other, not stacked" in err
    assert len(list((tmp_path / "grid").glob("*/results.json"))) == 2


def _without_bare_set(words: list[str]) -> list[str]:
    pairs = zip(words, [*words[1:], "--end"], strict=True)
    return [word for word, following in pairs if word != "--set" or not following.startswith("--")]


@pytest.mark.whole
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["onnx", "torch-export"])
def test_an_export_answers_as_the_model(
    name: str, kind: str, metavib: Any, with_network: Any, tmp_path: Path
) -> None:
    assert metavib(*with_network(name)).status == 0
    status, _, err = metavib("export", tmp_path / "run", "--format", kind, "-o", tmp_path / "out")
    assert status == 0, err
    facts = json.loads((tmp_path / "out" / f"{kind}.json").read_text())
    assert facts["backbone"] == name
    assert facts["image"]["size"] == SIDE
    assert facts["largest_difference"] < 1e-4


@pytest.mark.whole
@pytest.mark.parametrize("name", NETWORKS)
def test_a_report_a_plan_and_a_server(
    name: str, metavib: Any, with_network: Any, start: Any, folder: Path, tmp_path: Path
) -> None:
    assert "to go and" in metavib(*with_network(name)).err
    page = tmp_path / "page.html"
    assert metavib("report", tmp_path / "run", "-o", page).status == 0
    assert name in page.read_text()
    predictors = {mode: package.load(tmp_path / "run", device="cpu", mode=mode) for mode in MODES}
    image = next(folder.rglob("*.png"))
    (expected,) = predictors[MODES[0]]([image])
    (answer,) = start(predictors=predictors).send(image.read_bytes()).json["predictions"]
    assert answer["label"] == expected.label
    assert answer["probability"] == pytest.approx(expected.probability, abs=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("name", NETWORKS)
def test_images_that_do_not_fit_into_memory_make_no_difference(
    name: str, metavib: Any, with_network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metavib(*with_network(name, out=tmp_path / "in memory")).status == 0
    monkeypatch.setattr(storage, "free_memory", lambda device: 0)
    outcome = metavib(*with_network(name, "--memory", "3GiB", out=tmp_path / "in files"))
    assert outcome.status == 0
    assert "do not fit into memory" in outcome.err
    assert what_counts(tmp_path / "in files") == what_counts(tmp_path / "in memory")


@pytest.mark.processes
@pytest.mark.parametrize("name", NETWORKS)
def test_two_processes_train_as_one(name: str, metavib: Any, with_network: Any, tmp_path: Path) -> None:
    few = ("--set", "validations=1", "--set", "repeats=2")
    with Torchrun("-m", "metavib", *with_network(name, *few, out=tmp_path / "two"), folder=tmp_path) as both:
        status, _, err = both.outcome()
    assert status == 0, err
    assert metavib(*with_network(name, *few, out=tmp_path / "one")).status == 0
    for own, other in zip(*(_losses(tmp_path / run) for run in ("two", "one")), strict=True):
        assert own == pytest.approx(other, rel=1e-3)


# --- one's own ----------------------------------------------------------------------------------------------


def test_ones_own_network_is_run_only_where_it_is_named(
    metavib: Any, refused: Any, interrupted: Any, with_network: Any, folder: Path, tmp_path: Path
) -> None:
    run, image = tmp_path / "run", next(folder.rglob("*.png"))
    stopped = interrupted(*with_network(OWN), after=2)
    assert f"--backbone {OWN}" in stopped.err
    assert "give --backbone small_networks:plain again" in refused("train", "--out", run)
    assert metavib("train", "--out", run, "--backbone", OWN).status == 0
    assert metavib(*with_network(OWN, out=tmp_path / "unstopped")).status == 0
    assert what_counts(run) == what_counts(tmp_path / "unstopped")
    for words in (["predict", run, image], ["evaluate", run], ["export", run]):
        assert "code that is never run from a model directory: name it by hand" in refused(*words)
    assert metavib("predict", run, image, "--backbone", OWN).status == 0
    assert metavib("evaluate", run, "--backbone", OWN).status == 0
    with pytest.raises(UserError, match="never run from a model directory"):
        package.load(run, device="cpu")
    by_name, by_class = (package.load(run, device="cpu", backbone=own) for own in (OWN, Plain))
    assert by_name([image]) == by_class([image])


def test_a_model_directory_cannot_name_code(
    metavib: Any, refused: Any, with_network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a description says, it imports nothing, and reaches timm only as a name that timm lists."""
    from metavib.core.json_record import checksum

    assert metavib(*with_network("timm:test_vit")).status == 0
    path = tmp_path / "run" / "model" / "config.json"
    record = json.loads(path.read_text())
    for name in ("evil:payload", "timm:hf-hub:evil/payload", "timm:local-dir:/evil", "torchvision:../evil"):
        forged = {key: value for key, value in record.items() if key != "check"} | {"backbone": name}
        path.write_text(json.dumps(forged | {"check": checksum(forged)}))
        assert name.rpartition(":")[2] in refused("export", tmp_path / "run")
    for size in (0, 10**6, "32", None):
        forged = {key: value for key, value in record.items() if key != "check"}
        forged |= {"preprocessing": record["preprocessing"] | {"size": size}}
        path.write_text(json.dumps(forged | {"check": checksum(forged)}))
        refused("export", tmp_path / "run")
    assert "evil" not in sys.modules


def test_a_run_in_python_with_a_network_as_it_is(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = package.Backbone.of(Plain(), image_size=SIDE)
    options: dict[str, Any] = {"algorithm": "erm", "steps": 1, "device": "cpu", "out": tmp_path / "run"}
    options["settings"] = {"images_per_domain": 4, "validations": 1, "repeats": 2}
    run = package.train(folder, target="sketch", backbone=deepcopy(backbone), **options)
    assert run.results["backbone"] == "object:Plain"
    (answer,) = run.predictor()([next(folder.rglob("*.png"))])
    assert answer.label in ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("timm:test_vitt", [], "timm has no network 'test_vitt'; did you mean test_vit"),
        ("timm:test_vit", ["--image-size", 7], "7"),
        ("timm:test_vit", ["--weights", "imagenet"], "imagenet is for our own networks"),
        ("timm:test_vit", ["--weights", "WEIGHTS"], "do not fit VisionTransformer"),
        ("small_networks:two_channels", [], "takes images of 2 channels"),
        ("small_networks:maps", [], "not features [n, d]: pool or flatten them"),
        ("small_networks:not_finite", [], "are not finite"),
        ("small_networks:other_width", [], "in training and [2, 4] in evaluation"),
        ("small_networks:nothing", [], "has no function 'nothing'"),
        ("no_such_module:nothing", [], "cannot be imported"),
        ("small_networks:Rare", ["--algorithm", "mldg"], "network.rare (OnceOnly) has no second derivatives"),
        ("squeezenet", [], "leave --image-size out"),
    ],
)
def test_bad_networks_are_refused_before_anything_is_trained(
    name: str, more: list[Any], words: str, refused: Any, folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    if "WEIGHTS" in more:
        save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "other.safetensors")
        more = ["--weights", tmp_path / "other.safetensors"]
    line = [
        "train",
        folder,
        "--out",
        tmp_path / "run",
        "--target",
        "sketch",
        "--weights",
        "none",
        "--seed",
        0,
    ]
    line += ["--backbone", name, "--image-size", SIDE, "--set", "images_per_domain=4", "--steps", 1]
    assert words in refused(*line, *more)
    assert not (tmp_path / "run").exists()


def test_without_timm_the_extra_is_named(
    refused: Any, with_network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install 'metavib[timm]'" in refused(*with_network("timm:test_vit"))


def test_a_network_is_described(metavib: Any) -> None:
    status, out, _ = metavib("describe", "timm:test_vit", "--json")
    assert status == 0
    assert json.loads(out)["image_size"] == 160
    assert "timm:NAME" in metavib("describe").out
