"""Answers of finished runs on domains that were left out, on their unseen domain, and on other things.

    S="--preset demo --set repeats=1 --set validations=2 --set images_per_domain=32 --set learning_rate=0.002"
    metavib train rotated-digits $S --steps 120 --target all --seeds 3 --algorithm erm,metavib --out runs/digits
    metavib train rotated-mnist $S --steps 120 --target all --seeds 3 --algorithm erm,metavib --out runs/mnist
    metavib train DATA/digits_four $S --steps 200 --target all --seeds 3 --algorithm erm --backbone digits \
        --weights none --out runs/four  # and --algorithm metavib --set latent_width=256
    python experiments/uncertainty_answers.py answers/digits runs/digits runs/mnist runs/four
    python experiments/uncertainty.py results/uncertainty.json answers/digits

    python experiments/recipe_rounds.py PLAN.json OUT.json --runs runs/pacs --device cuda
    python experiments/uncertainty_answers.py answers/pacs runs/pacs --device cuda --processes 4
    python experiments/uncertainty.py results/uncertainty-pacs.json answers/pacs

Each run is calibrated across its source domains in memory; then, and only then, its unseen domain is opened. What
is kept is enough to judge every rule of `metavib.models` again without the network, and small: a file a run, and
all of them in parts of at most 15 MB (`answers/pacs/all-0.zip`). A run that has its file is not passed again.

With `--folds PAIRS` whole folds answer in place of heads: runs without two domains, `--target S --without T` for
each pair, of which each is a fold of both. `--whole FOLDER` is the data set of runs that lack one of its classes:
of that class `foreign` is asked too. (results/uncertainty-lost-class.json: a copy of digits_four without the
folders of class 9, trained as above with `--seeds 0,`.)
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.device import resolve_device
from metavib.data.drifts import foreign_images
from metavib.data.opening import LabelledRows, Sources, open_sources, open_target
from metavib.data.sources.catalog import default_data_root
from metavib.data.splits import Split
from metavib.data.transforms import Preprocessing
from metavib.models.calibrating import fitted_to
from metavib.models.directory import load_model, preprocessing_of
from metavib.models.domain_calibration import Calibrator
from metavib.models.fold_answers import own_answers
from metavib.models.left_out import (
    Fold,
    LeftOut,
    answered_by_folds,
    answered_by_heads,
    with_fair_drifts,
)
from metavib.models.look import Reaches, Seen, embedded_with_look
from metavib.models.measuring import embed
from metavib.models.source_features import Embedding, SourceFeatures, source_features
from metavib.runs.calibration import known_features
from metavib.runs.one_run import ExecutionContext
from metavib.runs.provenance import read_description
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory

COVERAGE = 0.9  # that thresholds of source validation are compared at
NOTHING = ("noise", "blank", "stripes")  # a third each of the images of nothing
MOST_BYTES = 15_000_000  # of a part of all files
KINDS = {
    "logs": "float16",
    "labels": "int16",
    "distances": "float32",
    "weights": "float32",
    "maps": "float32",
}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Asked:
    """What is the same for all runs."""

    device: str
    threads: int
    folds: Path | None = None  # runs without two domains
    whole: Path | None = None  # the data set with all classes


def answers_of(path: Path, asked: Asked) -> Arrays:
    """One run: all that its rules are fitted to and judged by."""
    torch.set_num_threads(asked.threads)
    started, device = time.monotonic(), resolve_device(asked.device)
    experiment = read_description(RunDirectory(path)).experiment
    algorithm, description = load_model(path, device)
    dataset = experiment.dataset_in(None).read_by(description.pixel_range)
    split, preprocessing = experiment.split_of(dataset), preprocessing_of(algorithm.backbone)
    sources = open_sources(dataset, split, preprocessing, device, skip_bad=False)
    known = known_features(experiment, algorithm, sources, ExecutionContext(device))
    opened, busy = time.monotonic(), time.process_time()
    features, left_out = _left_out(algorithm, sources, split, experiment, known, asked)
    record = fitted_to(with_fair_drifts(left_out, algorithm.classes), features)
    seconds = {"calibration_cpu": time.process_time() - busy, "calibration": time.monotonic() - opened}

    target, _ = open_target(dataset, split, preprocessing, device, sources.digests, skip_bad=False)
    calibrator = Calibrator(record, device)
    kept = _of_folds(left_out) | _of_sources(features)
    of_validation = (
        known(sources.validation) if known else embed(algorithm, sources.validation.batches()).features
    )
    kept |= _arrays("validation", logs=own_answers(algorithm, of_validation.to(device)))
    kept |= _arrays("validation", labels=sources.validation.labels)
    kept |= _arrays("unseen", labels=target.labels)
    kept |= _passed(
        "unseen", algorithm, calibrator, _shown(target, preprocessing), known(target) if known else None
    )
    nothing = foreign_images(99, preprocessing.channels, preprocessing.size, device)
    strangers = dict(zip(NOTHING, nothing.split(33), strict=True))
    strangers |= _strangers(preprocessing, dataset.name, split, asked)
    for kind, pictures in strangers.items():
        shown = (preprocessing.normalised(some.to(device)) for some in pictures.split(64))
        kept |= _passed(kind, algorithm, calibrator, shown)
    validations = description.calibration
    header: dict[str, Any] = {
        "dataset": dataset.name,
        "network": description.backbone,
        "algorithm": experiment.algorithm,
        "target": split.target,
        "seed": experiment.seed,
        "without": list(experiment.without),
        "steps": experiment.training.steps,
        "classes": algorithm.classes,
        "folds": left_out.folds,
        "notes": left_out.notes,
        "kinds": list(strangers),
        "entropy_of_validation": None if validations is None else validations.threshold("mean", COVERAGE),
        "seconds": seconds | {"all": time.monotonic() - started},
    }
    return kept | {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}


def _left_out(
    algorithm: Algorithm,
    sources: Sources,
    split: Split,
    experiment: Experiment,
    known: Embedding | None,
    asked: Asked,
) -> tuple[SourceFeatures, LeftOut]:
    """Features of the sources, and answers on each of them, with drifts that break the model too."""
    domains = list(split.train)
    if asked.folds is None:
        features = source_features(algorithm, sources, domains, known=known)
        return features, answered_by_heads(algorithm, features, keeps=-math.inf)
    models = {name: _fold(asked, experiment, name) for name in domains}
    left_out = answered_by_folds(models, sources, split.classes, known=known)
    return source_features(algorithm, sources, domains, known=known, drifts={}), left_out


def _fold(asked: Asked, experiment: Experiment, left_out: str) -> Fold:
    """The model of this folder that saw neither the target nor the domain that is left out."""
    assert asked.folds is not None
    wanted = (experiment.algorithm, experiment.seed, experiment.backbone)
    for path in sorted(one.parent for one in asked.folds.rglob("results.json")):
        own = read_description(RunDirectory(path)).experiment
        same = (own.algorithm, own.seed, own.backbone) == wanted
        if same and {own.target, *own.without} == {experiment.target, left_out}:
            algorithm, description = load_model(path, resolve_device(asked.device))
            return Fold(algorithm, description.classes)
    raise FileNotFoundError(f"no fold without {experiment.target} and {left_out}")


def _of_folds(left_out: LeftOut) -> Arrays:
    kept: Arrays = {}
    for name, one in left_out.clean.items():
        logs, labels, distances, weights = one
        kept |= _arrays(f"clean|{name}", logs=logs, labels=labels, distances=distances, weights=weights)
    for drift, by_domain in left_out.drifted.items():
        for name, one in by_domain.items():
            logs, labels, distances, _ = one
            kept |= _arrays(f"drifted|{name}|{drift}", logs=logs, labels=labels, distances=distances)
    return kept


def _of_sources(features: SourceFeatures) -> Arrays:
    """Textures of source images, and how far their maps lie from those of the others."""
    kept: Arrays = {}
    for name, seen in features.seen.items():
        kept |= _arrays(f"source|{name}", texture=seen.texture)
    maps = {name: seen.maps for name, seen in features.seen.items() if seen.maps is not None}
    if features.look is not None and maps:
        reaches = Reaches.of(maps)
        kept |= _arrays("near", maps=reaches.near)
        for name, far in reaches.far.items():
            kept |= _arrays(f"far|{name}", maps=far)
    return kept


def _passed(
    name: str,
    algorithm: Algorithm,
    calibrator: Calibrator,
    batches: Iterable[Tensor],
    features: Tensor | None = None,
) -> Arrays:
    """Answers, distances and looks of normalised images."""
    logs, distances, looks = [], [], []
    place, done = calibrator.place, 0
    for images in batches:
        with torch.no_grad():
            embedded, seen = embedded_with_look(algorithm, images, place)
            if features is not None:
                embedded = features[done : done + len(images)].to(images.device)
            logs.append(own_answers(algorithm, embedded).cpu())
            distances.append(calibrator.distances(embedded, images).cpu())
        looks += [] if seen is None else [seen]
        done += len(images)
    kept = _arrays(name, logs=torch.cat(logs), distances=torch.cat(distances))
    if looks:
        seen = Seen.joined(looks)
        kept |= _arrays(name, texture=seen.texture)
        if calibrator.look is not None and calibrator.look.maps is not None and seen.maps is not None:
            distance, _ = calibrator.look.maps
            kept |= _arrays(name, maps=distance(seen.maps.to(distance.means)))
    return kept


def _arrays(name: str, **values: Tensor) -> Arrays:
    return {
        f"{name}|{part}": own.detach().cpu().numpy().astype(KINDS.get(part, "float32"))
        for part, own in values.items()
    }


def _shown(rows: LabelledRows, preprocessing: Preprocessing) -> Iterable[Tensor]:
    return (preprocessing(rows.store.gather(some)) for some in rows.rows.split(64))


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


def _name_of(path: Path, asked: Asked) -> str:
    """Of the file of a run."""
    own = read_description(RunDirectory(path)).experiment
    way = "heads" if asked.folds is None else "whole"
    network = own.backbone.replace(":", "-")
    unseen = "_".join([str(own.target), *own.without])
    return f"{way}_{Path(own.dataset).name}_{network}_{own.algorithm}_{unseen}_{own.seed}.npz"


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        np.savez_compressed(file, **arrays)
    unfinished.rename(path)


def _pack(folder: Path) -> list[Path]:
    """All files of a folder in parts of at most 15 MB."""
    parts: list[list[Path]] = [[]]
    size = 0
    for path in sorted(folder.glob("*.npz")):
        size += path.stat().st_size + 1_000
        if size > MOST_BYTES and parts[-1]:
            parts.append([])
            size = path.stat().st_size
        parts[-1].append(path)
    packed = []
    for number, paths in enumerate(parts):
        packed.append(folder / f"all-{number}.zip")
        with zipfile.ZipFile(packed[-1], "w", zipfile.ZIP_STORED) as file:
            for path in paths:
                file.write(path, path.name)
    return packed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, help="a folder: a file a run")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--folds", type=Path, help="runs without two domains each, in pairs: whole folds")
    parser.add_argument("--whole", type=Path, help="the data set with the class that the runs lack")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    asked = Asked(arguments.device, arguments.threads, arguments.folds, arguments.whole)
    paths = sorted({one.parent for folder in arguments.runs for one in folder.rglob("results.json")})
    wanted = {path: arguments.out / _name_of(path, asked) for path in paths}
    left = {path: out for path, out in wanted.items() if not out.exists()}
    print(f"{len(wanted)} runs, {len(wanted) - len(left)} of them kept already", flush=True)
    processes = min(arguments.processes, max(1, len(left)))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(answers_of, path, asked): path for path in left}
        for number, job in enumerate(as_completed(jobs), start=1):
            path = jobs[job]
            try:
                arrays = job.result()
            except FileNotFoundError as error:
                print(path.name, error, flush=True)
                continue
            _write(left[path], arrays)
            header = json.loads(arrays["header"].tobytes())
            kilobytes = left[path].stat().st_size // 1_000
            print(f"{number}/{len(left)} {left[path].name} {kilobytes} kB {header['seconds']}", flush=True)
    for path in _pack(arguments.out):
        print(path, path.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
