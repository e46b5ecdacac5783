"""What all tests share: shapes are checked, caches are temporary, real data is found or skipped by name."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook
from PIL import Image
from places import DATA

check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int may stand for a float, as in mypy

# Before the first import of metavib: from here on every annotated shape and type is checked at run time. Triton
# reads the source of a kernel, so those are left alone; and scikit-learn hands wrong types to an estimator,
# to see what it says to them itself.
_ROOT = Path(__file__).parents[1] / "src" / "metavib"
_UNITS = {
    ".".join(path.relative_to(_ROOT.parent).with_suffix("").parts)
    for path in _ROOT.rglob("*.py")
    if path.stem not in ("__init__", "estimator") and "import triton" not in path.read_text(encoding="utf-8")
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    install_import_hook([*sorted(_UNITS), "metavib.domainbed"], f"{__name__}.check_types")

pytest_plugins = [
    "browser_fixtures",
    "record_fixtures",
    "serving_fixtures",
    "site_fixtures",
    "sweep_fixtures",
]

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # tests run side by side: threads would only wait for one another


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache."""
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real MNIST, PACS and weights: METAVIB_DATA, or `../shared/data` beside the checkout."""
    if not DATA.is_dir():
        pytest.skip(
            f"no real data in {DATA}: set METAVIB_DATA to a folder with mnist, pacs, pacs_splits, weights"
        )
    return DATA


# What keeps a run small; later flags override earlier ones.
QUICK = ["--target", "sketch", "--seed", "1", "--steps", "3", "--backbone", "digits", "--weights", "none"]
for _setting in ("images_per_domain=8", "latent_draws=2", "classifier_draws=2", "latent_width=16"):
    QUICK += ["--set", _setting]
QUICK += ["--set", "repeats=2", "--set", "validations=2"]


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


class Finished(NamedTuple):
    """A run that is not to be changed, with the images that it saw."""

    run: Path
    folder: Path
    command: list[str]


@pytest.fixture(scope="session")
def make_folder() -> Callable[..., Path]:
    """Makes a folder of domains: small images, no two alike, in which the class can be seen."""

    def make(root: Path, domains: str = "art cartoon photo sketch", classes: str = "cat dog") -> Path:
        random = np.random.default_rng(0)
        for domain in domains.split():
            for position, label in enumerate(classes.split()):
                (root / domain / label).mkdir(parents=True)
                for number in range(4):
                    pixels = random.integers(0, 120, (20, 20, 3), dtype=np.uint8)
                    pixels[:, 10 * position :][:, :10] += 120
                    Image.fromarray(pixels).save(root / domain / label / f"{number}.png")
        return root

    return make


@pytest.fixture
def folder(make_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of four domains with two classes."""
    return make_folder(tmp_path / "images")


@pytest.fixture
def training(folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a short training run in `tmp_path / "run"`."""

    def arguments(*more: Any, data: Any = folder, out: Any = tmp_path / "run") -> list[str]:
        return ["train", str(data), "--out", str(out), *QUICK, *map(str, more)]

    return arguments


@pytest.fixture
def cell(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes a small run of a grid; where its settings are not the usual ones, they are in its name."""
    from metavib.runs.cells import Cell
    from metavib.training.experiment import experiment_from

    def make(
        target: str = "sketch",
        seed: int = 1,
        algorithm: str = "erm",
        place: str = "runs",
        backbone: str = "digits",
        **changes: Any,
    ) -> Cell:
        values = {"dataset": str(folder), "target": target, "seed": seed, "algorithm": algorithm}
        values |= {"backbone": backbone, "weights": "none"}
        small = {"steps": 4, "images_per_domain": 8, "validations": 2, "repeats": 2}
        if algorithm in ("baseline", "vib", "metavib"):
            small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
        name = "-".join([algorithm, target, str(seed), *(f"{key}{value}" for key, value in changes.items())])
        return Cell(experiment_from(values, small | changes), tmp_path / place / name)

    return make


@pytest.fixture
def metavib(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Calls a command in this process."""
    from metavib.interfaces.cli.main import main

    def call(*arguments: Any) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture
def refused(metavib: Callable[..., Outcome]) -> Callable[..., str]:
    """Calls a command that must end with status 2 and one line on stderr, and gives the line."""

    def call(*arguments: Any) -> str:
        status, out, err = metavib(*arguments, "--json")
        assert (status, out) == (2, ""), err
        assert err.startswith("metavib: ")
        assert len(err.splitlines()) == 1, err
        return err

    return call


@pytest.fixture
def interrupted(metavib: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Calls `train` and stops it, as Ctrl-C does, after so many steps."""
    from metavib.interfaces.cli.training import stopping

    def call(*arguments: Any, after: int) -> Outcome:
        @contextlib.contextmanager
        def stop_after_some_steps() -> Iterator[Callable[[], bool]]:
            steps = iter(range(after - 1))
            yield lambda: next(steps, None) is None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stopping, "stop_requested", stop_after_some_steps)
            outcome = metavib(*arguments)
        assert outcome.status == 130
        return outcome

    return call


@pytest.fixture(scope="session")
def finished(make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One finished run for all tests that only read it."""
    from metavib.interfaces.cli.main import main

    root = tmp_path_factory.mktemp("finished")
    folder = make_folder(root / "images")
    command = ["train", str(folder), "--out", str(root / "run"), *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        assert main(command) == 0
    return Finished(root / "run", folder, command)


@pytest.fixture
def finished_copy(finished: Finished, tmp_path: Path) -> Finished:
    """A finished run that a test may damage."""
    return finished._replace(run=shutil.copytree(finished.run, tmp_path / "copy"))


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command line as a process of its own."""
    return [sys.executable, "-m", "metavib"]


# --- runs as a report reads them, made up -----------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Any]:
    """A finished run."""
    from made_up_results import results_like

    from metavib.runs.records import RunRecord
    from metavib.training.experiment import experiment_from
    from metavib.training.run_directory import RunDirectory

    def make(algorithm: str = "metavib", target: str = "0", seed: int = 0, **changes: Any) -> RunRecord:
        values = {"dataset": "rotated-digits", "target": target, "seed": seed, "algorithm": algorithm}
        experiment = experiment_from(values | {"preset": "demo"}, changes.pop("settings", {}))
        given = {"algorithm": algorithm, "unseen_domain": target, "seed": seed, "unseen": {}}
        results = results_like(**(given | changes.pop("results", {})))
        log = changes.pop("log", ({"step": 1, "classification": 2.0}, {"step": 2, "classification": 1.0}))
        return RunRecord(RunDirectory(tmp_path / f"{algorithm}-{target}-{seed}"), experiment, results, log)

    return make


@pytest.fixture
def answers() -> Callable[..., Any]:
    """Answers with these probabilities; drawn classifiers say the same, where none are given."""
    import torch

    from metavib.reports.judged import ModelAnswers

    def make(probabilities: Any, labels: Sequence[int], by_classifier: Any = None) -> ModelAnswers:
        given = torch.as_tensor(probabilities, dtype=torch.float64)
        drawn = given.unsqueeze(0) if by_classifier is None else by_classifier
        return ModelAnswers(torch.tensor(labels), torch.zeros(len(labels), 2), given, drawn, given)

    return make


@pytest.fixture
def judged(record: Callable[..., Any], answers: Callable[..., Any]) -> Callable[..., Any]:
    """A run with its answers: four unseen images of three classes, and features of three domains."""
    import numpy as np
    import torch

    from metavib.reports.judged import DomainSample, Judged

    def make(
        probabilities: Any = ((0.6, 0.3, 0.1), (0.2, 0.5, 0.3), (0.4, 0.35, 0.25), (0.1, 0.1, 0.8)),
        labels: Sequence[int] = (0, 1, 1, 2),
        by_classifier: Any = None,
        validation: Any = None,
        sampled: Any = None,
        **run: Any,
    ) -> Judged:
        unseen = answers(probabilities, labels, by_classifier)
        pictures = {index: np.full((1, 4, 4), index, dtype=np.uint8) for index in range(len(labels))}
        if sampled is None:
            features = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
            domains = torch.arange(3).repeat_interleave(30)
            sampled = DomainSample(features, torch.arange(90) % 3, domains, ("1", "2", "0"))
        return Judged(record(**run), unseen, validation, pictures, sampled)

    return make
