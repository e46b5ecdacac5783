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
only then, its unseen domain is opened. The record has a row a run, and risk against coverage for the figures.
docs/uncertainty.md is made from it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.core import atomic
from metavib.data.drifts import foreign_images
from metavib.data.opening import open_sources, open_target
from metavib.data.sources.catalog import default_data_root
from metavib.data.transforms import Preprocessing
from metavib.models.calibrating import calibrate_across_domains, calibrate_by_folds, fitted_map
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
from metavib.models.left_out import Answers, Fold
from metavib.models.measures import MEASURES
from metavib.models.measuring import Embedded, embed
from metavib.models.metrics import scored
from metavib.models.selective import oracle_coverage, risk_curve
from metavib.nn.functional.predictive import entropy
from metavib.runs.calibration import known_features
from metavib.runs.one_run import ExecutionContext
from metavib.runs.provenance import read_description
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory

MOST_ERROR, COVERAGE, SETS = 0.05, 0.9, 0.9
CPU = torch.device("cpu")
MEASURED = ("accuracy", "ece", "smooth_ece", "augrc", "aurc", "risk_at_80_coverage", "coverage_at_5_risk")


def measured(path: Path, data_root: Path | None, folds: Path | None = None) -> dict[str, Any]:
    """One run: everything on its unseen domain."""
    experiment = read_description(RunDirectory(path)).experiment
    algorithm, description = load_model(path, CPU)
    dataset = experiment.dataset_in(data_root).read_by(description.pixel_range)
    split, preprocessing = experiment.split_of(dataset), preprocessing_of(algorithm.backbone)
    sources = open_sources(dataset, split, preprocessing, CPU, skip_bad=False)
    context = ExecutionContext(CPU)
    known = known_features(experiment, algorithm, sources, context)
    started = time.process_time()
    if folds is None:
        record = calibrate_across_domains(algorithm, sources, list(split.train), known=known)
    else:
        models = {name: _fold(folds, experiment, name) for name in split.train}
        record = calibrate_by_folds(algorithm, sources, models, split.classes, known=known)
    seconds = time.process_time() - started
    target, _ = open_target(dataset, split, preprocessing, CPU, sources.digests, skip_bad=False)
    validation, unseen = (
        Embedded(known(rows), rows.labels) if known else embed(algorithm, rows.batches())
        for rows in (sources.validation, target)
    )

    calibrator, labels = Calibrator(record, CPU), unseen.labels
    raw = own_answers(algorithm, unseen.features).double()
    distances = calibrator.distances(unseen.features).double()
    across = calibrator.probabilities(raw.exp(), distances)
    ones = torch.ones(len(validation.labels))
    on_validation = Answers.of(own_answers(algorithm, validation.features), validation.labels, ones)
    temperature, _ = fitted_map([on_validation], by_distance=False)
    ways = {
        "raw": raw.exp(),
        "source_validation": tempered(raw, torch.ones(len(labels), dtype=torch.float64), temperature, 0.0),
        "across_domains": across,
    }
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "algorithm": experiment.algorithm,
        "target": split.target,
        "seed": experiment.seed,
        "images": len(labels),
        "calibration_cpu_seconds": round(seconds, 2),
        "log_temperature": record.log_temperature,
        "by_distance": record.by_distance,
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
    row["today"] = _today(description.calibration, algorithm, raw, right, validation)
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
    for kind, pictures in (
        ("foreign", foreign_images(99, preprocessing.channels, preprocessing.size, CPU)),
        ("other_objects", _other_objects(preprocessing, dataset.name)),
    ):
        with torch.no_grad():
            shown = preprocessing.normalised(pictures)
            far = calibrator.distances(algorithm.embed(shown), shown).double()
        row[kind] = {
            "found": (far > record.foreign_above).double().mean().item(),
            "false": (distances > record.foreign_above).double().mean().item(),
            "auroc": area_under_roc(distances, far),
            "fpr_at_95": false_alarms(distances, far),
        }
    for way in ("raw", "across_domains"):
        curve = risk_curve(ways[way].max(dim=1).values, right)
        places = torch.linspace(0, len(labels) - 1, 21).long()
        row[f"{way}_risk"] = [round(value, 4) for value in curve.risk[places].tolist()]
    return _rounded(row)


def _fold(folder: Path, experiment: Experiment, left_out: str) -> Fold:
    """The model of this folder that saw neither the target nor the domain that is left out."""
    for path in sorted(one.parent for one in folder.rglob("results.json")):
        own = read_description(RunDirectory(path)).experiment
        unseen = {own.target, *own.without}
        same = (own.algorithm, own.seed) == (experiment.algorithm, experiment.seed)
        if same and unseen == {experiment.target, left_out}:
            algorithm, description = load_model(path, CPU)
            return Fold(algorithm, description.classes)
    raise FileNotFoundError(f"no fold without {experiment.target} and {left_out}")


def _other_objects(preprocessing: Preprocessing, own: str) -> Tensor:
    """Real images of other things, for the network: photographs for digits, digits for all else."""
    digits = "digit" in own or "mnist" in own
    root = default_data_root() / ("pacs/photo" if digits else "digits_four/mnist")
    parts = []
    for path in sorted(one for one in root.rglob("*") if one.is_file())[:: 20 if not digits else 17][:99]:
        with Image.open(path) as image:
            shown = image.convert("L" if preprocessing.channels == 1 else "RGB")
            pixels = np.asarray(shown.resize((preprocessing.size, preprocessing.size)), dtype=np.float32)
        parts.append(torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1) / 255)
    return torch.stack(parts)


def _today(calibration: Any, algorithm: Any, raw: Tensor, right: Tensor, validation: Any) -> dict[str, Any]:
    """The thresholds without leaving anything out: entropy of source validation, and its oracle for 5 % wrong."""
    covered = _answered(entropy(raw.exp()) <= calibration.threshold("mean", COVERAGE), right)
    own = own_answers(algorithm, validation.features).exp().double()
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out, way = arguments.out, "heads" if arguments.folds is None else "whole"
    known = json.loads(out.read_text())["runs"] if out.exists() else []
    rows = {
        (row["folds"], row["dataset"], row["algorithm"], row["target"], row["seed"]): row for row in known
    }
    for folder in arguments.runs:
        for path in sorted(one.parent for one in folder.rglob("results.json")):
            experiment = read_description(RunDirectory(path)).experiment
            own = (experiment.algorithm, experiment.target, experiment.seed)
            if (way, Path(experiment.dataset).name, *own) in rows:
                continue
            try:
                row = measured(path, None, arguments.folds)
            except FileNotFoundError as error:
                print(path.name, error, flush=True)
                continue
            rows[way, row["dataset"], *own] = row
            print(path.name, row["max_error"], row["coverage"], flush=True)
            command = "python experiments/uncertainty.py results/uncertainty.json RUNS (its head names them)"
            atomic.write_json(out, {"command": command, "runs": list(rows.values())})


if __name__ == "__main__":
    main()
