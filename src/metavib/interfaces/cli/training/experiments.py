"""The experiment and its place: from the flags, the configuration file and a run that is there already."""

import argparse
import contextlib
import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metavib.core.config_file import read_config
from metavib.core.device import resolve_device
from metavib.core.errors import UserError, unknown_name
from metavib.data.sources.catalog import NAMES, open_dataset, short_name
from metavib.interfaces.cli.flags import data_root, frozen_by
from metavib.models.results import Expected
from metavib.nn.own_network import own_network
from metavib.nn.weights import NAMED as PUBLISHED
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT, RULES
from metavib.runs.expectation import expectation
from metavib.runs.provenance import read_description
from metavib.training.at_hand import BEST_FIRST, AtHand, network_at_hand
from metavib.training.averaging import AVERAGES
from metavib.training.experiment import Experiment, experiment_from
from metavib.training.run_directory import RunDirectory

OF_ANY_NETWORK = ("fast", "fitted")  # presets whose settings suit more than the network that they name
OF_A_FOLDER = "fast"  # the preset of a run on a folder of images where none is named
NOTHING = "none"  # the target that holds nothing out


def experiment_and_place(
    arguments: argparse.Namespace, given: Mapping[str, Any] | None = None
) -> tuple[Experiment, Path]:
    """Return the experiment and its place, from the flags, the configuration file and a run that is there already.

    `given` are values that no flag can have: a target of None holds nothing out, whatever the domains are called.
    """
    recorded = _recorded_experiment(Path(arguments.out)) if arguments.out else {}
    values = configured(arguments)
    if not arguments.dataset and not arguments.config:
        if not recorded:
            raise UserError(f"no dataset is given. Name one: {', '.join(NAMES)}, or a path.")
        values = dict(recorded)  # only --out: go on with the run that is there
    names = ("dataset", "protocol", "target", "without", "algorithm", "preset", "backbone", "weights", "seed")
    values |= {
        name: getattr(arguments, name)
        for name in (*names, "image_size")
        if getattr(arguments, name) is not None
    }
    if (own := own_network(values.get("backbone"))) is not None and arguments.backbone is not None:
        values["backbone"] = own.name
    values |= given or {}
    if values.get("seed") is None:
        values["seed"] = recorded.get("seed", secrets.randbelow(2**31))
    values["dataset"] = absolute_if_path(values.get("dataset"), NAMES)
    values["weights"] = absolute_if_path(values.get("weights"), (*PUBLISHED, "none"))
    if values.get("target", NOTHING) == NOTHING:
        _decide_target(values, data_root(arguments))
    chosen = _chosen_network(arguments, values)
    of_folder = values.get("preset") is None and values.get("dataset") not in NAMES
    left_open = {"backbone": chosen.name} if chosen is not None else {}
    left_open |= {"preset": OF_A_FOLDER} if of_folder else {}
    experiment = experiment_from(
        values | left_open | _begun_with(recorded, left_open), assignments_from(arguments)
    )
    place = Path(arguments.out) if arguments.out else usual_place(experiment)
    if not arguments.out and (begun := _begun_with(_recorded_experiment(place), left_open)):
        experiment = experiment_from(values | left_open | begun, assignments_from(arguments))
    return experiment, place


def _begun_with(recorded: Mapping[str, Any], left_open: Mapping[str, str]) -> dict[str, str]:
    """Choices that were made when the run began: weights or versions that came since do not change them."""
    ours = {"backbone": BEST_FIRST, "preset": OF_ANY_NETWORK}
    return {name: recorded[name] for name in left_open if recorded.get(name) in ours[name]}


def _chosen_network(arguments: argparse.Namespace, values: Mapping[str, Any]) -> AtHand | None:
    """The network of a run on a folder of images where nothing is said about it; None where the preset has one."""
    said = any(values.get(name) is not None for name in ("backbone", "weights", "image_size"))
    if said or values["dataset"] in NAMES or values.get("preset") not in (None, *OF_ANY_NETWORK):
        return None
    return network_at_hand(data_root(arguments), resolve_device(arguments.device))


def network_in_words(arguments: argparse.Namespace, experiment: Experiment) -> str | None:
    """Which network was chosen, and why; None where it was named."""
    values = configured(arguments) | {"dataset": experiment.dataset, "preset": experiment.preset}
    given = {name: getattr(arguments, name) for name in ("backbone", "weights", "image_size")}
    chosen = _chosen_network(arguments, values | {n: v for n, v in given.items() if v is not None})
    return chosen.in_words() if chosen is not None and chosen.name == experiment.backbone else None


def _decide_target(values: dict[str, Any], root: Path | None) -> None:
    """Nothing is held out where the target is "none", unless the dataset has a domain of that name."""
    found = open_dataset(str(values["dataset"]), data_root=root, protocol=values.get("protocol"), seed=0)
    if "target" not in values:
        raise UserError(
            f"no --target is given: name the domain to hold out, {', '.join(found.domains)}, or none to train "
            "on all of them."
        )
    if NOTHING not in found.domains:
        values["target"] = None


def configured(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration file's values for the experiment; its flags are among the arguments already."""
    given = read_config(Path(arguments.config)) if arguments.config else {}
    named = {key.replace("-", "_"): value for key, value in given.items()}
    fields = [field.name for field in dataclasses.fields(Experiment)]
    return {name: value for name, value in named.items() if name in fields}


def assignments_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags and `--set` change."""
    if arguments.select not in (None, *RULES):
        raise unknown_name("selection rule", arguments.select, RULES)
    if arguments.average not in (None, *AVERAGES):
        raise unknown_name("average", arguments.average, AVERAGES)
    flags = {
        "steps": arguments.steps,
        "average": arguments.average,
        "record_information": arguments.record_information,
    }
    if arguments.select != LEAVE_ONE_DOMAIN_OUT:  # which chooses settings, and then keeps a model as ever
        flags["selection"] = arguments.select
    given = {name: value for name, value in flags.items() if value is not None}
    given |= frozen_by(vars(arguments).get("freeze"))
    return given | dict(assignment(text) for text in arguments.set)


def assignment(text: str) -> tuple[str, str]:
    """Split NAME=VALUE into its two parts."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set takes NAME=VALUE, not {text!r}.")
    return name.strip(), value.strip()


def absolute_if_path(value: Any, names: tuple[str, ...]) -> Any:
    """A path that is there, so that it is found from any folder; a name with a meaning of its own stays."""
    if value in names:
        return value
    with contextlib.suppress(OSError, TypeError, ValueError):
        if Path(value).exists():
            return str(Path(value).resolve())
    return value


def usual_place(experiment: Experiment) -> Path:
    """The run directory where none is named."""
    target = NOTHING if experiment.target is None else experiment.target
    parts = [short_name(experiment.dataset), target, experiment.algorithm, f"seed{experiment.seed}"]
    if experiment.training.average != "none":
        parts.insert(3, experiment.training.average)
    if experiment.training.frozen or experiment.training.frozen_stages:
        parts.insert(3, f"frozen{experiment.training.frozen_stages or ''}")
    if experiment.without:
        parts.append("without-" + "-".join(experiment.without))
    return Path("runs") / "-".join(part.replace("/", "_").replace(" ", "_") for part in parts)


def expected_of(arguments: argparse.Namespace, experiment: Experiment) -> Expected | None:
    """The expectation by `--measured-by`, found before anything is trained; None where it is not given."""
    if not arguments.measured_by:
        return None
    if experiment.target is not None:
        raise UserError(
            f"--measured-by goes with --target none: this run measures on {experiment.target!r} itself."
        )
    dataset = experiment.dataset_in(data_root(arguments))
    return expectation([Path(path) for path in arguments.measured_by], experiment, dataset)


def _recorded_experiment(out: Path) -> dict[str, Any]:
    """The experiment of a run that is there already."""
    directory = RunDirectory(out)
    return read_description(directory).experiment.to_json() if directory.experiment.exists() else {}
