"""`metavib.train`: a run on a folder of images from Python, by the code of the command line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, final

from metavib.core.device import resolve_device
from metavib.interfaces.cli.parsing import parsers
from metavib.interfaces.cli.reporting import write_report
from metavib.interfaces.cli.training.experiments import experiment_and_place
from metavib.interfaces.cli.training.one_run import trained
from metavib.models.class_accuracy import ClassRow, rows_of_run, worst_first
from metavib.models.results import results_from
from metavib.nn.own_network import Given, own_network
from metavib.serving.predictor import Predictor, load
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

Place = str | os.PathLike[str]


@final
@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A finished run: its directory, what it measured, and the way to its model."""

    path: Path
    results: dict[str, Any]  # as results.json holds them
    device: str = "auto"
    data: str | None = None
    backbone: Given | None = None  # where it is a network of one's own

    def __repr__(self) -> str:
        unseen = self.results["unseen"]
        held_out = "nothing held out" if unseen is None else f"{self.results['unseen_domain']!r} unseen"
        measured = self.results["source_validation"] if unseen is None else unseen
        accuracy = "" if measured is None else f", accuracy {100 * measured['accuracy']['mean']:.1f} %"
        where = " on source validation" if unseen is None and measured is not None else ""
        text = f"{self.results['algorithm']} on {self.results['dataset']}, {held_out}{accuracy}{where}"
        return f"<metavib run {self.path}: {text}>"

    @property
    def classes(self) -> list[ClassRow]:
        """The accuracy and the number of images of each class in each domain, worst first."""
        return worst_first(rows_of_run(results_from(self.results, self.path)))

    def predictor(self, **options: Any) -> Predictor:
        """The model, ready to classify. Options are those of `metavib.load`: device, seed, mode, coverage."""
        return load(self.path, **({"device": self.device, "backbone": self.backbone} | options))

    def report(self, path: Place = "report.html") -> Path:
        """Write the page of `metavib report` for this run, its figures beside it; the page's path."""
        root = None if self.data is None else Path(self.data)
        own = own_network(self.backbone)
        write_report([self.path], Path(path), [], root, resolve_device(self.device), own)
        return Path(path)


def train(
    folder: Place | None = None,
    *,
    target: str | EllipsisType | None = ...,
    algorithm: str | None = None,
    preset: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    out: Place | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    backbone: Given | None = None,
    weights: str | None = None,
    image_size: int | None = None,
    freeze: bool | str = False,
    without: Sequence[str] = (),
    measured_by: Place | Sequence[Place] = (),
    data: Place | None = None,
    skip_bad: bool = False,
    log: str | Sequence[str] = (),
) -> FinishedRun:
    """Train on a folder of images, or on a dataset that `metavib describe` names, and measure.

    The arguments are the flags of `metavib train`. `target` is the domain that is held out; None holds nothing out
    and trains on all. `backbone` is a name, or a network of your own: a module that gives features, what
    `metavib.Backbone.of` makes of one, or a function that returns either. `settings` are those of `--set`, by
    name. Where no seed is given it is 0, so that the same call finds its run again. `freeze`
    keeps the network as it is (True), or its first stages ("stages=2"). `log` names trackers: tensorboard, mlflow,
    wandb.

    The same call returns a finished run and goes on with an unfinished one; `out` alone goes on with the run that
    is there. Ctrl-C (in a notebook: interrupt the kernel) raises KeyboardInterrupt after a checkpoint is written.
    What is wrong with the arguments or the images is a `UserError`, as is a run directory with another experiment.
    """
    _, commands = parsers(["train"])
    arguments = commands["train"].parse_args([])
    arguments.dataset = None if folder is None else os.fspath(folder)
    arguments.out = None if out is None else os.fspath(out)
    begun = out is not None and RunDirectory(Path(out)).experiment.exists()
    arguments.seed = 0 if seed is None and not begun else seed
    arguments.algorithm, arguments.preset, arguments.steps = algorithm, preset, steps
    arguments.backbone, arguments.weights, arguments.image_size = backbone, weights, image_size
    arguments.device = device
    arguments.freeze = freeze if isinstance(freeze, str) else "all" if freeze else None
    arguments.set = [f"{name}={value}" for name, value in (settings or {}).items()]
    several = [measured_by] if isinstance(measured_by, str | os.PathLike) else measured_by
    arguments.measured_by = [os.fspath(path) for path in several]
    arguments.data = None if data is None else os.fspath(data)
    arguments.skip_bad = skip_bad
    arguments.log = [log] if isinstance(log, str) else list(log)
    given: dict[str, Any] = {} if isinstance(target, EllipsisType) else {"target": target}
    if without:
        given["without"] = [without] if isinstance(without, str) else list(without)
    experiment, place = experiment_and_place(arguments, given)
    try:
        results = trained(arguments, experiment, place, resolve_device(device))
    except Stopped as stopped:
        raise KeyboardInterrupt(f"{stopped}; the run is kept in {place}: the same call goes on.") from None
    assert results is not None  # there is one process
    own = None if own_network(backbone) is None else backbone
    return FinishedRun(place, results.to_json(), device, arguments.data, own)
