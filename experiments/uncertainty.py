"""What `unsure`, sets, forecasts and `foreign` do on domains nobody has seen: stated against obtained, run by run.

    python experiments/uncertainty.py results/uncertainty.json ANSWERS...

ANSWERS are folders or zip files that uncertainty_answers.py wrote; its head says of which runs. Here the rules are
fitted to the answers on left-out domains, and judged on those on the unseen one. The record has a row a run, and
risk against coverage for the figures. docs/uncertainty.md is made of it.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.core import atomic
from metavib.models.calibrating import fitted_map, recorded
from metavib.models.calibration_errors import classwise_calibration_error
from metavib.models.detection import area_under_roc, false_alarms
from metavib.models.domain_calibration import (
    Calibrator,
    DomainCalibration,
    promise_coverage,
    promise_error,
    promised_sets,
    tempered,
)
from metavib.models.feature_distance import fitted_distance
from metavib.models.left_out import Answers, LeftOut, with_fair_drifts
from metavib.models.look import USUAL_MAPS, USUAL_TEXTURE, Reaches
from metavib.models.measures import MEASURES
from metavib.models.metrics import scored
from metavib.models.selective import oracle_coverage, risk_curve
from metavib.nn.functional.predictive import entropy

MOST_ERROR, COVERAGE, SETS = 0.05, 0.9, 0.9
NOTHING = ("noise", "blank", "stripes")
IDENTITY = ("dataset", "network", "algorithm", "target", "seed")
MEASURED = ("accuracy", "ece", "smooth_ece", "augrc", "aurc", "risk_at_80_coverage", "coverage_at_5_risk")


@dataclass(frozen=True)
class Kept:
    """The answers of a run."""

    header: dict[str, Any]
    arrays: Mapping[str, np.ndarray]

    def tensor(self, name: str) -> Tensor:
        """One of its arrays."""
        own = torch.from_numpy(self.arrays[name].astype(np.float32))
        return own.long() if name.endswith("|labels") else own

    def answers(self, name: str) -> Answers:
        """On one domain; images weigh the same unless it says how much."""
        logs = torch.log_softmax(self.tensor(f"{name}|logs").double(), dim=1)
        found = Answers.of(logs, self.tensor(f"{name}|labels"), self.tensor(f"{name}|distances").double())
        if f"{name}|weights" not in self.arrays:
            return found
        return found._replace(weights=self.tensor(f"{name}|weights").double())

    def left_out(self) -> LeftOut:
        """Answers on source domains that were left out, with the drifts that count."""
        names = [one.split("|") for one in self.arrays if one.endswith("|logs")]
        clean = {name: self.answers(f"clean|{name}") for kind, name, *_ in names if kind == "clean"}
        drifted: dict[str, dict[str, Answers]] = {}
        for kind, *rest in names:
            if kind == "drifted":
                name, drift, _ = rest
                drifted.setdefault(drift, {})[name] = self.answers(f"drifted|{name}|{drift}")
        every = LeftOut(clean, drifted, self.header["folds"], tuple(self.header["notes"]))
        return with_fair_drifts(every, self.header["classes"])

    def looks(self, kinds: Sequence[str]) -> dict[str, Tensor]:
        """Of the images of each kind, as `Look` has them; 0 where there are too few sources for that."""
        found = {kind: torch.zeros(len(self.arrays[f"{kind}|logs"]), dtype=torch.float64) for kind in kinds}
        textures = {
            name.split("|")[1]: self.tensor(name)
            for name in self.arrays
            if name.startswith("source|") and name.endswith("|texture")
        }
        if f"{kinds[0]}|texture" not in self.arrays:
            return found
        texture = Reaches.of(textures)
        far = {name.split("|")[1]: self.tensor(name) for name in self.arrays if name.startswith("far|")}
        of_maps = Reaches(texture.distance, far, self.tensor("near|maps")).above(USUAL_MAPS) if far else 1.0
        for kind, values in found.items():
            by_texture = texture.distance(self.tensor(f"{kind}|texture")) / texture.above(USUAL_TEXTURE)
            found[kind] = torch.maximum(values, by_texture.double())
            if far:
                found[kind] = torch.maximum(found[kind], self.tensor(f"{kind}|maps").double() / of_maps)
        return found


def opened(places: Sequence[Path]) -> Iterator[Kept]:
    """All runs of these folders and zip files."""
    for place in places:
        if place.is_dir():
            for path in sorted(place.glob("*.npz")):
                yield _read(path.read_bytes())
            continue
        with zipfile.ZipFile(place) as file:
            for name in sorted(file.namelist()):
                yield _read(file.read(name))


def _read(content: bytes) -> Kept:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    return Kept(json.loads(arrays.pop("header").tobytes()), arrays)


def record_of(left_out: LeftOut) -> DomainCalibration:
    """The rules, without the distance itself: distances were kept."""
    unused = fitted_distance(torch.eye(3), torch.zeros(3, dtype=torch.long), torch.eye(3)).record()
    return recorded(left_out, unused, None, torch.empty(0))


def judged(kept: Kept) -> dict[str, Any]:
    """One run: what was stated, and what was obtained on its unseen domain."""
    record = record_of(kept.left_out())
    unseen = kept.answers("unseen")
    row: dict[str, Any] = {
        name: value for name, value in kept.header.items() if name not in ("kinds", "notes")
    }
    row["notes"] = record.notes
    row |= promised(record, unseen)
    validation = kept.tensor("validation|logs").double()
    on_validation = Answers.of(
        validation, kept.tensor("validation|labels"), torch.ones(len(validation)).double()
    )
    temperature, _ = fitted_map([on_validation], by_distance=False)
    flat = torch.ones(len(unseen.labels), dtype=torch.float64)
    ways = {
        "raw": unseen.log_probabilities.exp(),
        "source_validation": tempered(unseen.log_probabilities, flat, temperature, 0.0),
        "across_domains": calibrated(record, unseen),
    }
    right = ways["raw"].argmax(dim=1) == unseen.labels
    places = torch.linspace(0, len(right) - 1, 21).long()
    for way, probabilities in ways.items():
        scores = scored(probabilities, unseen.labels)
        row[way] = {name: MEASURES[name].compute(scores).item() for name in MEASURED}
        row[way]["classwise_ece"] = classwise_calibration_error(probabilities, unseen.labels).item()
        curve = risk_curve(probabilities.max(dim=1).values, right)
        row[f"{way}_risk"] = [round(value, 4) for value in curve.risk[places].tolist()]
    row["today"] = _today(kept.header["entropy_of_validation"], ways["raw"], right, on_validation)
    return _rounded(row | _foreign(kept, record))


def promised(record: DomainCalibration, unseen: Answers) -> dict[str, Any]:
    """What each promise comes to on answers that it was not made from."""
    across = calibrated(record, unseen)
    right = across.argmax(dim=1) == unseen.labels
    confidence = across.max(dim=1).values
    error, coverage = promise_error(record, MOST_ERROR), promise_coverage(record, COVERAGE)
    row: dict[str, Any] = {"log_temperature": record.log_temperature, "by_distance": record.by_distance}
    row["max_error"] = _answered(confidence >= error.threshold - 1e-6, right) | {"kept_on_folds": error.kept}
    row["max_error"]["oracle"] = oracle_coverage(confidence, right, MOST_ERROR).item()
    row["coverage"] = _answered(confidence >= coverage.threshold - 1e-6, right)
    row["coverage"]["kept_on_folds"] = coverage.kept
    held = 1 - across <= promised_sets(record, SETS) + 1e-6
    held |= across == across.max(dim=1, keepdim=True).values
    row["sets"] = {
        "covered": held.gather(1, unseen.labels[:, None]).double().mean().item(),
        "size": held.sum(dim=1).double().mean().item(),
    }
    row["forecast"] = {
        "stated": confidence.mean().item(),
        "obtained": right.double().mean().item(),
        "deviation": record.forecast_deviation,
    }
    return row


def calibrated(record: DomainCalibration, answers: Answers) -> Tensor:
    calibrator = Calibrator(record, torch.device("cpu"))
    return calibrator.probabilities(answers.log_probabilities.exp(), answers.distances)


def _foreign(kept: Kept, record: DomainCalibration) -> dict[str, Any]:
    """Which images are foreign, of each kind; above 1 an image is."""
    kinds = ["unseen", *kept.header["kinds"]]
    looks = kept.looks(kinds)
    strange = {
        kind: torch.maximum(kept.tensor(f"{kind}|distances").double() / record.foreign_above, looks[kind])
        for kind in kinds
    }
    far = {kind: kept.tensor(f"{kind}|distances").double() / record.foreign_above for kind in kinds}
    for values in (strange, far):
        values["foreign"] = torch.cat([values[kind] for kind in NOTHING])
    usual, near = strange.pop("unseen"), far.pop("unseen")
    return {
        kind: {
            "found": (values > 1).double().mean().item(),
            "false": (usual > 1).double().mean().item(),
            "auroc": area_under_roc(usual, values),
            "fpr_at_95": false_alarms(usual, values),
            "found_by_distance": (far[kind] > 1).double().mean().item(),
            "false_by_distance": (near > 1).double().mean().item(),
        }
        for kind, values in strange.items()
    }


def _today(threshold: float | None, raw: Tensor, right: Tensor, validation: Answers) -> dict[str, Any]:
    """The thresholds without leaving anything out: entropy of source validation, and its oracle for 5 % wrong."""
    own = validation.log_probabilities.exp()
    of_validation = own.max(dim=1).values
    hits = own.argmax(dim=1) == validation.labels
    share = oracle_coverage(of_validation, hits, MOST_ERROR).item()
    ordered = of_validation.sort(descending=True).values
    confident = ordered[max(0, round(share * len(ordered)) - 1)].item() if share else 2.0
    sure = torch.ones_like(right) if threshold is None else entropy(raw) <= threshold
    return {
        "coverage": _answered(sure, right),
        "max_error": _answered(raw.max(dim=1).values >= confident, right),
    }


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
    parser.add_argument("answers", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kept in opened(arguments.answers):
        rows.append(judged(kept))
        print(*(kept.header[part] for part in IDENTITY), rows[-1]["max_error"], rows[-1]["sets"], flush=True)
    rows.sort(key=lambda row: tuple(str(row[part]) for part in IDENTITY))
    made_by = f"python experiments/uncertainty.py results/{arguments.out.name} ANSWERS"
    command = f"{made_by} (uncertainty_answers.py says of which runs)"
    atomic.write_json(arguments.out, {"command": command, "runs": rows})


if __name__ == "__main__":
    main()
