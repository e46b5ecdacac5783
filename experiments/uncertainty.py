"""What `unsure`, sets and forecasts do on domains nobody has seen: stated against obtained, for many runs.

    S="--preset demo --set repeats=1 --set validations=2 --set images_per_domain=32 --set learning_rate=0.002"
    metavib train rotated-digits $S --steps 120 --target all --seeds 3 --algorithm erm,metavib --out runs/digits
    metavib train rotated-mnist $S --steps 120 --target all --seeds 3 --algorithm erm,metavib --out runs/mnist
    metavib train DATA/digits_four $S --steps 200 --target all --seeds 3 --algorithm erm --backbone digits \
        --weights none --out runs/four  # and --algorithm metavib --set latent_width=256
    metavib train pacs --freeze --preset fast --steps 200 --target all --seeds 3 --algorithm erm,metavib \
        --backbone timm:tf_efficientnet_lite0 --weights FILE --out runs/pacs
    python experiments/uncertainty.py results/uncertainty.json runs/digits runs/mnist runs/four runs/pacs

With `--folds PAIRS` whole folds answer in place of heads: runs without two domains, `--target S --without T` for
each pair, of which each is a fold of both. Each run is calibrated across its source domains in memory; then, and
only then, its unseen domain is opened. The record has a row a run, and risk against coverage for the figures. It
is written after every run, and a run that it has is not measured again. docs/uncertainty.md is made from it.

`--whole FOLDER` is the data set of runs that lack one of its classes: of that class `foreign` is asked too.
`--keep FOLDER` keeps the answers that a record was fitted to, and those on the unseen domain, for other fits.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core import atomic
from metavib.core.device import resolve_device
from metavib.data.drifts import foreign_images
from metavib.data.opening import open_sources, open_target
from metavib.data.sources.catalog import default_data_root
from metavib.data.splits import Split
from metavib.data.store.storage import LastStore
from metavib.data.transforms import Preprocessing
from metavib.models.calibrating import calibrate_by_folds, fitted, fitted_map
from metavib.models.calibration_errors import classwise_calibration_error
from metavib.models.detection import area_under_roc, false_alarms
from metavib.models.directory import load_model, preprocessing_of
from metavib.models.domain_calibration import (
    Calibrator,
    pooled_sets,
    promise_coverage,
    promise_error,
    promised_sets,
    tempered,
)
from metavib.models.fold_answers import own_answers
from metavib.models.left_out import Answers, Fold, LeftOut, answered_by_heads
from metavib.models.look import embedded_with_look
from metavib.models.measures import MEASURES
from metavib.models.measuring import Embedded, embed
from metavib.models.metrics import scored
from metavib.models.selective import oracle_coverage, risk_curve
from metavib.models.source_features import source_features
from metavib.nn.functional.predictive import entropy
from metavib.runs.calibration import known_features
from metavib.runs.one_run import ExecutionContext
from metavib.runs.provenance import read_description
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory

MOST_ERROR, COVERAGE, SETS = 0.05, 0.9, 0.9
IDENTITY = ("algorithm", "target", "seed")
NOTHING = ("noise", "blank", "stripes")  # a third each of the images of nothing
MEASURED = ("accuracy", "ece", "smooth_ece", "augrc", "aurc", "risk_at_80_coverage", "coverage_at_5_risk")


@dataclass(frozen=True)
class Asked:
    """What is the same for all runs."""

    device: torch.device
    folds: Path | None = None  # runs without two domains
    whole: Path | None = None  # the data set with all classes
    keep: Path | None = None
    last_store: LastStore = field(default_factory=LastStore)


def measured(path: Path, asked: Asked) -> dict[str, Any]:  # noqa: PLR0915  a row, part by part
    """One run: everything on its unseen domain."""
    started = time.monotonic()
    experiment = read_description(RunDirectory(path)).experiment
    algorithm, description = load_model(path, asked.device)
    dataset = experiment.dataset_in(None).read_by(description.pixel_range)
    split, preprocessing = experiment.split_of(dataset), preprocessing_of(algorithm.backbone)
    sources = open_sources(
        dataset, split, preprocessing, asked.device, skip_bad=False, last_store=asked.last_store
    )
    known = known_features(experiment, algorithm, sources, ExecutionContext(asked.device))
    opened, busy = time.monotonic(), time.process_time()
    features = None
    if asked.folds is None:
        features = source_features(algorithm, sources, list(split.train), known=known)
        record = fitted(algorithm, features)
    else:
        models = {name: _fold(asked, experiment, name) for name in split.train}
        record = calibrate_by_folds(algorithm, sources, models, split.classes, known=known)
    seconds = {"calibration_cpu": time.process_time() - busy, "calibration": time.monotonic() - opened}
    target, _ = open_target(dataset, split, preprocessing, asked.device, sources.digests, skip_bad=False)
    validation, unseen = (
        Embedded(known(rows), rows.labels) if known else embed(algorithm, rows.batches())
        for rows in (sources.validation, target)
    )

    calibrator, labels = Calibrator(record, asked.device), unseen.labels.cpu()
    given = unseen.features.to(asked.device)
    raw = own_answers(algorithm, given).double().cpu()
    distances = calibrator.distances(given).double().cpu()
    calibrator_here = Calibrator(record, torch.device("cpu"))
    across = calibrator_here.probabilities(raw.exp(), distances)
    of_validation = own_answers(algorithm, validation.features.to(asked.device)).cpu()
    ones = torch.ones(len(validation.labels))
    on_validation = Answers.of(of_validation, validation.labels.cpu(), ones)
    temperature, _ = fitted_map([on_validation], by_distance=False)
    ways = {
        "raw": raw.exp(),
        "source_validation": tempered(raw, torch.ones(len(labels), dtype=torch.float64), temperature, 0.0),
        "across_domains": across,
    }
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "network": description.backbone,
        "algorithm": experiment.algorithm,
        "target": split.target,
        "seed": experiment.seed,
        "steps": experiment.training.steps,
        "images": len(labels),
        "log_temperature": record.log_temperature,
        "by_distance": record.by_distance,
        "notes": record.notes,
    }
    for way, probabilities in ways.items():
        scores = scored(probabilities, labels)
        row[way] = {name: MEASURES[name].compute(scores).item() for name in MEASURED}
        row[way]["classwise_ece"] = classwise_calibration_error(probabilities, labels).item()

    right = across.argmax(dim=1) == labels
    confidence = across.max(dim=1).values
    error, coverage = promise_error(record, MOST_ERROR), promise_coverage(record, COVERAGE)
    row["max_error"] = _answered(confidence >= error.threshold - 1e-6, right) | {"kept_on_folds": error.kept}
    row["max_error"]["oracle"] = oracle_coverage(confidence, right, MOST_ERROR).item()
    row["coverage"] = _answered(confidence >= coverage.threshold - 1e-6, right)
    row["today"] = _today(description.calibration, raw, right, on_validation)
    for name, limit in (("sets", promised_sets(record, SETS)), ("pooled_sets", pooled_sets(record, SETS))):
        held = 1 - across <= limit + 1e-6
        held |= across == across.max(dim=1, keepdim=True).values
        row[name] = {
            "covered": held.gather(1, labels[:, None]).double().mean().item(),
            "size": held.sum(dim=1).double().mean().item(),
        }
    row["forecast"] = {
        "stated": confidence.mean().item(),
        "obtained": right.double().mean().item(),
        "deviation": record.forecast_deviation,
    }
    row["folds"] = record.folds
    nothing = foreign_images(99, preprocessing.channels, preprocessing.size, asked.device)
    strangers = {"foreign": nothing} | dict(zip(NOTHING, nothing.split(33), strict=True))
    strangers |= _strangers(preprocessing, dataset.name, split, asked)
    shown_unseen = (preprocessing(target.store.gather(some)) for some in target.rows.split(256))
    with torch.no_grad():
        usual = _strangeness(calibrator, distances, _passed(algorithm, shown_unseen, calibrator)[1])
    kept = {"unseen": (raw, labels, distances), "validation": (of_validation, validation.labels, ones)}
    for kind, pictures in strangers.items():
        with torch.no_grad():
            shown = [preprocessing.normalised(some.to(asked.device)) for some in pictures.split(256)]
            of_kind, seen = _passed(algorithm, shown, calibrator)
            far = calibrator.distances(of_kind, torch.cat(shown)).double().cpu()
            strange = _strangeness(calibrator, far, seen)
        row[kind] = {
            "found": (strange > 1).double().mean().item(),
            "false": (usual > 1).double().mean().item(),
            "auroc": area_under_roc(usual, strange),
            "fpr_at_95": false_alarms(usual, strange),
            "found_by_distance": (far > record.foreign_above).double().mean().item(),
            "false_by_distance": (distances > record.foreign_above).double().mean().item(),
        }
        kept[kind] = (own_answers(algorithm, of_kind), torch.zeros(len(far)), far)
    for way in ("raw", "across_domains"):
        curve = risk_curve(ways[way].max(dim=1).values, right)
        places = torch.linspace(0, len(labels) - 1, 21).long()
        row[f"{way}_risk"] = [round(value, 4) for value in curve.risk[places].tolist()]
    if asked.keep is not None and features is not None:
        _keep(asked.keep, row, answered_by_heads(algorithm, features, keeps=-math.inf), kept)
    row["seconds"] = seconds | {"all": time.monotonic() - started}
    return _rounded(row)


def _keep(folder: Path, row: dict[str, Any], left_out: LeftOut, kept: dict[str, Any]) -> None:
    """Log-probabilities, labels and distances of all that was answered, as float16."""
    sets = {("left out", name, ""): tuple(one)[:3] for name, one in left_out.clean.items()}
    for drift, by_domain in left_out.drifted.items():
        sets |= {("drifted", name, drift): tuple(one)[:3] for name, one in by_domain.items()}
    sets |= {("other", name, ""): values for name, values in kept.items()}
    arrays = {
        "|".join([*name, part]): values.detach().cpu().numpy().astype(kind)
        for name, found in sets.items()
        for part, values, kind in zip(
            ("logs", "labels", "distances"), found, ("float16", "int16", "float32"), strict=True
        )
    }
    parts = (row[name] for name in ("dataset", "network", "algorithm", "target", "seed"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / ("_".join(map(str, parts)).replace(":", "-") + ".npz"), **arrays)


def _fold(asked: Asked, experiment: Experiment, left_out: str) -> Fold:
    """The model of this folder that saw neither the target nor the domain that is left out."""
    assert asked.folds is not None
    for path in sorted(one.parent for one in asked.folds.rglob("results.json")):
        own = read_description(RunDirectory(path)).experiment
        unseen = {own.target, *own.without}
        same = (own.algorithm, own.seed, own.backbone) == (
            experiment.algorithm,
            experiment.seed,
            experiment.backbone,
        )
        if same and unseen == {experiment.target, left_out}:
            algorithm, description = load_model(path, asked.device)
            return Fold(algorithm, description.classes)
    raise FileNotFoundError(f"no fold without {experiment.target} and {left_out}")


def _passed(
    algorithm: Algorithm, shown: Iterable[Tensor], calibrator: Calibrator
) -> tuple[Tensor, Tensor | None]:
    """Features of images, and what is seen on the way."""
    parts = [embedded_with_look(algorithm, some, calibrator.place) for some in shown]
    features, seen = ([one for one in own if one is not None] for own in zip(*parts, strict=True))
    return torch.cat(features), torch.cat(seen) if seen else None


def _strangeness(calibrator: Calibrator, distances: Tensor, seen: Tensor | None) -> Tensor:
    """Above 1 an image is foreign: the larger of both shares of their thresholds."""
    looks = calibrator.looks(seen, distances.to(calibrator.distance.means)).double().cpu()
    return torch.maximum(distances / calibrator.record.foreign_above, looks)


def _strangers(preprocessing: Preprocessing, own: str, split: Split, asked: Asked) -> dict[str, Tensor]:
    """Real images of other things, for the network: photographs for digits, digits for all else; a lost class."""
    digits = "digit" in own or "mnist" in own
    root = default_data_root() / ("pacs/photo" if digits else "digits_four/mnist")
    found = {
        "other_objects": sorted(one for one in root.rglob("*") if one.is_file())[:: 17 if digits else 20][:99]
    }
    if asked.whole is not None and split.target is not None:
        unseen = asked.whole / split.target
        found["left_out_class"] = sorted(
            one for one in unseen.rglob("*") if one.is_file() and one.parent.name not in split.classes
        )
    return {kind: _opened(files, preprocessing) for kind, files in found.items() if files}


def _opened(files: Sequence[Path], preprocessing: Preprocessing) -> Tensor:
    parts = []
    for path in files:
        with Image.open(path) as image:
            shown = image.convert("L" if preprocessing.channels == 1 else "RGB")
            pixels = np.asarray(shown.resize((preprocessing.size, preprocessing.size)), dtype=np.float32)
        parts.append(torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1) / 255)
    return torch.stack(parts)


def _today(calibration: Any, raw: Tensor, right: Tensor, validation: Answers) -> dict[str, Any]:
    """The thresholds without leaving anything out: entropy of source validation, and its oracle for 5 % wrong."""
    covered = _answered(entropy(raw.exp()) <= calibration.threshold("mean", COVERAGE), right)
    own = validation.log_probabilities.exp().double()
    of_validation = own.max(dim=1).values
    hits = own.argmax(dim=1) == validation.labels
    share = oracle_coverage(of_validation, hits, MOST_ERROR).item()
    ordered = of_validation.sort(descending=True).values
    threshold = ordered[max(0, round(share * len(ordered)) - 1)].item() if share else 2.0
    return {"coverage": covered, "max_error": _answered(raw.exp().max(dim=1).values >= threshold, right)}


def _answered(sure: Tensor, right: Tensor) -> dict[str, Any]:
    count = int(sure.sum())
    wrong = int((sure & ~right).sum())
    return {"answered": count / len(right), "wrong": wrong / count if count else None}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--folds", type=Path, help="runs without two domains each, in pairs: whole folds")
    parser.add_argument("--whole", type=Path, help="the data set with the class that the runs lack")
    parser.add_argument("--keep", type=Path, help="a folder for all answers, to try other fits on them")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    out, way = arguments.out, "heads" if arguments.folds is None else "whole"
    asked = Asked(resolve_device(arguments.device), arguments.folds, arguments.whole, arguments.keep)
    rows = json.loads(out.read_text())["runs"] if out.exists() else []
    known = {
        (row["folds"], row["dataset"], row.get("network", "digits"), *map(row.get, IDENTITY)) for row in rows
    }
    for folder in arguments.runs:
        for path in sorted(one.parent for one in folder.rglob("results.json")):
            own = read_description(RunDirectory(path)).experiment
            name = (way, Path(own.dataset).name, own.backbone, own.algorithm, own.target, own.seed)
            if name in known:
                continue
            try:
                row = measured(path, asked)
            except FileNotFoundError as error:
                print(path.name, error, flush=True)
                continue
            rows.append(row)
            print(path.name, row["max_error"], row["coverage"], row["seconds"], flush=True)
            command = "python experiments/uncertainty.py results/uncertainty.json RUNS (its head names them)"
            atomic.write_json(out, {"command": command, "runs": rows})


if __name__ == "__main__":
    main()
