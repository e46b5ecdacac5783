"""A finished run measured again, on its unseen domain or on another."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from metavib.core.device import resolve_device
from metavib.core.errors import UserError, require_known
from metavib.core.terminal import counting_bar, print_json, say
from metavib.data.opening import open_target, training_digests
from metavib.data.splits import split_domains
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.outcome import depends_on, show_classes, show_results
from metavib.models.class_accuracy import class_rows
from metavib.models.directory import preprocessing_of
from metavib.models.measuring import Evaluation, embed, measure
from metavib.models.results import Measurement, read_results, write_results
from metavib.nn.own_network import own_network
from metavib.runs.finished import trained_model
from metavib.training.run_directory import RunDirectory


def evaluate_run(arguments: argparse.Namespace) -> int:
    """Measure a run, and print the table."""
    directory = RunDirectory(Path(arguments.run))
    if directory.results.exists():
        read_results(directory.results)  # what cannot be read is refused before any image is measured
    device = resolve_device(arguments.device)
    run = trained_model(
        directory, device, data_root=data_root(arguments), own=own_network(arguments.backbone)
    )
    experiment, algorithm, description, dataset, split = run
    domain = arguments.domain or experiment.target
    if domain is None:
        raise UserError(
            f"nothing was held out in {directory.path}: there is no unseen domain to measure on. --domain NAME "
            f"measures on the validation images of a source domain: {', '.join(description.source_domains)}."
        )
    require_known("domain", domain, dataset.domains)
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
    resized = dataset.resized_by(preprocessing.interpolation)  # which the cache has
    known = training_digests(resized, seen, preprocessing.size, skip_bad=arguments.skip_bad)
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
    measured = measure(algorithm, embed(algorithm, rows.batches()), experiment.seed, settings)
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
        "measured": measured.to_json(),
        "data": {"target": target_record},
    }
    kind = "source domain" if seen_in_training else "unseen domain"
    training = experiment.training
    own = (training.selection, training.average, dataset.protocol, description.split, experiment.seed)
    show_results(f"{kind} {domain!r}", measured, experiment.algorithm, depends_on(*own))
    show_classes(class_rows(split.classes, measured.by_class, domain, unseen=not seen_in_training))
    if domain == experiment.target and arguments.repeats is None:
        add_missing(directory, measured)
    if arguments.json:
        print_json(results | {"run": str(directory.path)})
    return 0


def add_missing(directory: RunDirectory, measured: Measurement) -> None:
    """Put measures that came after the run into its results: what it has measured itself stays as it is."""
    if not directory.results.exists():
        return
    results = read_results(directory.results)
    if results.unseen is None:
        return
    missing = {name: one for name, one in measured.measures.items() if name not in results.unseen.measures}
    if missing:
        unseen = dataclasses.replace(results.unseen, measures=results.unseen.measures | missing)
        write_results(directory.results, dataclasses.replace(results, unseen=unseen))
        say(f"{directory.results} is older than {', '.join(missing)}: added.")
