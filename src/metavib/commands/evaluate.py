"""`metavib evaluate`: measure a finished run again, on its unseen domain or on another."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from metavib.class_accuracy import rows_of
from metavib.commands.outcome import show_classes
from metavib.commands.train import show_results
from metavib.data.prepared import open_target, training_digests
from metavib.data.splits import split_domains
from metavib.device import resolve_device
from metavib.errors import UserError, unknown_name
from metavib.evaluate import Evaluation, embed, measure
from metavib.experiment import Experiment, experiment_from
from metavib.model import load_model, preprocessing_of
from metavib.run_directory import RunDirectory, read_json
from metavib.terminal import counting_bar, print_json, say


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print."""
    directory = RunDirectory(Path(arguments.run))
    if not directory.path.is_dir():
        raise UserError(f"there is no run directory {directory.path}.")
    experiment, recorded_split = recorded(directory)
    device = resolve_device(arguments.device)
    algorithm, description = load_model(directory.path, device)
    root = Path(arguments.data) if arguments.data else None
    dataset = experiment.dataset_in(root).read_by(description.pixel_range)
    domain = arguments.domain or experiment.target
    if domain is None:
        raise UserError(
            f"nothing was held out in {directory.path}: there is no unseen domain to measure on. --domain NAME "
            f"measures on the validation images of a source domain: {', '.join(description.source_domains)}."
        )
    if domain not in dataset.domains:
        raise unknown_name("domain", domain, dataset.domains)
    split = experiment.split_of(dataset)
    if split.digest(dataset) != recorded_split:
        raise UserError(
            f"the images changed since the run in {directory.path} was made: it would mix up roles."
        )
    if description.classes != split.classes:
        raise UserError(f"the model in {directory.path} has other classes than the images.")
    if domain in experiment.without:  # as unseen as the target
        split = split_domains(
            dataset,
            domain,
            seed=experiment.seed,
            validation_share=experiment.training.validation_share,
            without=sorted({*experiment.without, *filter(None, [experiment.target])} - {domain}),
            least_sources=1,  # the model is there already
        )
    seen_in_training = domain in split.train
    preprocessing = preprocessing_of(algorithm.backbone)
    if not seen_in_training:  # apart from the validation images too, as when the run was measured
        seen = dataclasses.replace(
            split, train={name: split.train[name] + split.validation[name] for name in split.train}
        )
    else:
        if not split.validation[domain]:
            raise UserError(
                f"all images of source domain {domain!r} were trained on: there is nothing to measure."
            )
        seen = split
        split = dataclasses.replace(split, target=domain, tested=split.validation[domain])
        say(f"{domain!r} is a source domain of this run: measuring on its validation images.")
    known = training_digests(dataset, seen, preprocessing.size, skip_bad=arguments.skip_bad)
    settings = experiment.evaluation if arguments.repeats is None else Evaluation(repeats=arguments.repeats)
    with counting_bar("reading images") as reading:
        rows, target_record = open_target(
            dataset,
            split,
            preprocessing,
            device,
            known,
            skip_bad=arguments.skip_bad,
            progress=reading,
        )
    if clipped := target_record["clipped_images"]:
        say(f"{clipped} image(s) of {domain!r} have values beyond the range of the model: they are clipped.")
    results: dict[str, Any] = {
        "dataset": dataset.name,
        "protocol": dataset.protocol,
        "split": description.split,
        "algorithm": experiment.algorithm,
        "seed": experiment.seed,
        "selection": experiment.training.selection,
        "average": experiment.training.average,
        "classes": list(split.classes),
        "domain": domain,
        "seen_in_training": seen_in_training,
        "measured": measure(algorithm, embed(algorithm, rows.batches()), experiment.seed, settings),
        "data": {"target": target_record},
    }
    kind = "source domain" if seen_in_training else "unseen domain"
    show_results(f"{kind} {domain!r}", results["measured"], results)
    show_classes(rows_of(split.classes, results["measured"], domain, unseen=not seen_in_training))
    if arguments.json:
        print_json(results | {"run": str(directory.path)})
    return 0


def recorded(directory: RunDirectory) -> tuple[Experiment, str]:
    """The experiment of a run, and the digest of its split."""
    record = read_json(directory.experiment)
    try:
        return experiment_from(record["experiment"]), record["data"]["split"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{directory.experiment} is damaged: {error!r}.") from error
