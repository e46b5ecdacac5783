"""A new dataset, backbone, algorithm, figure and metric are each one new file and one line of a registry.

They are added to a copy of the package, and then used by its commands: nothing else is told of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.whole

PACKAGE = Path(__file__).parents[1] / "src" / "metavib"


class Part(NamedTuple):
    """What is added: a file, and what a registry says of it."""

    file: str
    text: str
    registry: str
    imported: str  # "" where the registry names the file in the line itself
    line: str
    before: str  # the entry that the line is put before


DATASET = Part(
    "data/sources/stripes.py",
    '''"""Stripes that lie or stand, in three shades."""

import numpy as np

from metavib.data.dataset import Dataset, DomainImages, Listing, digest_of


class Stripes(Dataset):
    """Two classes of grey images in three domains."""

    name = "stripes"
    domains = ("dark", "grey", "light")
    channels = 1
    protocol = "stripes: all that there are"

    def listing(self, domain):
        """Twelve images, by turns lying and standing."""
        names = tuple(f"{domain}-{number}" for number in range(12))
        return Listing(domain, names, ("lying", "standing") * 6, ("",) * 12)

    def images(self, domain, size, *, skip_bad=False, progress=None):
        """The wider the stripes, the later the image."""
        shade = 60 * (1 + self.domains.index(domain))
        made = []
        for number in range(12):
            lying = np.tile(np.arange(size) // (2 + number) % 2 * shade, (size, 1)).astype(np.uint8)
            made.append(lying[None] if number % 2 == 0 else lying.T[None].copy())
        return DomainImages(np.stack(made), tuple(range(12)), tuple(digest_of(one.tobytes()) for one in made), ())


def open_stripes(root, *, protocol, seed):
    """Stripes that lie or stand, in three shades; no download."""
    return Stripes()
''',
    "data/sources/catalog.py",
    "from metavib.data.sources.stripes import open_stripes\n",
    '    "stripes": open_stripes,\n',
    '    "rotated-digits": open_rotated_digits,\n',
)
BACKBONE = Part(
    "nn/rows.py",
    '''"""A network that looks at the mean of each row."""

from torch import nn

from metavib.nn.backbone import PIXELS, Backbone


class RowMeans(Backbone):
    """One layer on the means of all rows."""

    feature_size = 8
    image_size = 28
    channels = 1
    normalisation = PIXELS

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(28, 8)

    def extract(self, images, masks):
        """relu(W m + b) of the row means m."""
        return self.layer(images.mean(dim=(1, 3))).relu()
''',
    "nn/backbones.py",
    "from metavib.nn.rows import RowMeans\n",
    '    "rows": RowMeans,\n',
    '    "digits": DigitNetwork,\n',
)
ALGORITHM = Part(
    "algorithms/smooth.py",
    '''"""ERM with smoothed labels (Szegedy et al., CVPR 2016)."""

from dataclasses import dataclass

import torch
from torch import nn

from metavib.algorithms.base import SoftmaxClassifier
from metavib.core.settings import Settings, setting


class Smooth(SoftmaxClassifier):
    """A softmax classifier that is never quite sure."""

    title = "Smooth ERM"
    paper = "Szegedy et al., CVPR 2016"

    @dataclass(frozen=True)
    class Config(Settings):
        """How sure."""

        smoothing: float = setting(0.1, "share of the labels that goes to all classes", minimum=0)

    def __init__(self, backbone, classes, config):
        super().__init__(backbone, classes)
        self.smoothing = config.smoothing

    def losses(self, episode, noise):
        """Cross-entropy with smoothed labels."""
        images = torch.cat([episode.meta_train.flat_images(), episode.meta_test.flat_images()])
        labels = torch.cat([episode.meta_train.flat_labels(), episode.meta_test.flat_labels()])
        logits = self.classifier(self.backbone(images, noise.get("dropout")))
        return {"smoothed": nn.functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)}
''',
    "algorithms/__init__.py",
    "from metavib.algorithms.smooth import Smooth\n",
    '    "smooth": Smooth,\n',
    '    "erm": ERM,\n',
)
FIGURE = Part(
    "reports/seeds.py",
    '''"""The seeds of all runs."""

from metavib.reports.figure import Figure, drawing


def seeds(runs):
    """A point for each run."""
    values = [run.experiment.seed for run in runs]
    svg = drawing("seeds", lambda canvas: canvas.subplots().plot(values, "o"))
    rows = tuple((run.title, value) for run, value in zip(runs, values, strict=True))
    return [Figure("seeds", "Seeds of all runs", "One point a run.", "Points.", svg, ("run", "seed"), rows)]
''',
    "reports/figures.py",
    "",
    '    "seeds": FigureKind("Seeds", "seeds.seeds", from_answers=False),\n',
    '    "training": FigureKind(',
)
METRIC = Part(
    "models/sureness.py",
    '''"""How sure a model is, whether it is right or not."""

from metavib.models.metrics import Measure

MEAN_CONFIDENCE = Measure(
    lambda scores: scores.confidence.mean(),
    "mean confidence",
    "the mean probability of the most probable class",
    higher_is_better=True,
)
''',
    "models/measures.py",
    "from metavib.models.sureness import MEAN_CONFIDENCE\n",
    '    "mean_confidence": MEAN_CONFIDENCE,\n',
    '    "nll": Measure(',
)
PARTS = (DATASET, BACKBONE, ALGORITHM, FIGURE, METRIC)


# Calls commands one after another in one process, and says what each printed: torch is imported once.
CALLS = """
import contextlib, io, json, sys
from metavib.interfaces.cli.main import main

def printed(command):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        assert main(command) == 0, command
    return text.getvalue()

json.dump([printed(command) for command in json.load(sys.stdin)], sys.stdout)
"""
TRAIN = (
    "train stripes --target light --algorithm smooth --backbone rows --seed 1 --steps 3 --set smoothing=0.2"
)


class Tree(NamedTuple):
    """A copy of the package with all parts added, and what its commands print."""

    root: Path
    printed: dict[str, str]

    @property
    def run(self) -> Path:
        return self.root / "run"

    def calls(self, **commands: str) -> None:
        """Run commands of the copy, and keep what they print under their names."""
        done = subprocess.run(
            [sys.executable, "-c", CALLS],
            env=os.environ | {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            cwd=self.root,
            input=json.dumps([command.split() for command in commands.values()]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.printed.update(zip(commands, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, root / "metavib", ignore=shutil.ignore_patterns("__pycache__"))
    for part in PARTS:
        (root / "metavib" / part.file).write_text(part.text)
        registry = root / "metavib" / part.registry
        text = registry.read_text()
        assert text.count(part.before) == 1
        text = text.replace(part.before, part.line + part.before)
        if part.imported:
            first = text.index("from metavib.")
            text = text[:first] + part.imported + text[first:]
        registry.write_text(text)
    tree = Tree(root, {})
    tree.calls(train=f"{TRAIN} --set images_per_domain=4 --out run")
    older = root / "older"  # as a version without the metric has written it
    shutil.copytree(tree.run, older)
    results = json.loads((older / "results.json").read_text())
    for part_of in ("unseen", "source_validation"):
        del results[part_of]["mean_confidence"]
    (older / "results.json").write_text(json.dumps(results))
    tree.calls(
        overview="describe --json",
        dataset="describe stripes",
        backbone="describe rows",
        algorithm="describe smooth --json",
        older="train --config older/config.yaml --out older",
        report="report run older -o report.html",
        help="report --help",
    )
    return tree


def test_a_dataset_is_trained_on_and_described(tree: Tree) -> None:
    assert "unseen domain 'light', 12 images" in tree.printed["train"]
    results = json.loads((tree.run / "results.json").read_text())
    assert (results["dataset"], results["classes"]) == ("stripes", ["lying", "standing"])
    assert "Stripes that lie or stand" in tree.printed["dataset"]
    assert "stripes" in json.loads(tree.printed["overview"])["datasets"]


def test_a_backbone_is_trained_and_described(tree: Tree) -> None:
    config = json.loads((tree.run / "model" / "config.json").read_text())
    assert config["backbone"] == "rows"
    assert "One layer on the means of all rows." in tree.printed["backbone"]


def test_an_algorithm_is_trained_described_and_named_by_its_title(tree: Tree) -> None:
    log = (tree.run / "metrics.jsonl").read_text().splitlines()
    assert "smoothed" in json.loads(log[0])
    described = json.loads(tree.printed["algorithm"])
    assert (described["title"], described["paper"]) == ("Smooth ERM", "Szegedy et al., CVPR 2016")
    assert "Smooth ERM" in (tree.root / "report.html").read_text()


def test_a_figure_is_in_the_report_and_in_the_help(tree: Tree) -> None:
    assert "seeds" in tree.printed["help"]
    assert "Seeds of all runs" in (tree.root / "report.html").read_text()
    rows = (tree.root / "report-figures" / "seeds.csv").read_text()
    assert rows == "run,seed\nSmooth ERM,1\nSmooth ERM,1\n"


def test_a_metric_is_in_the_results_the_table_the_report_and_the_card(tree: Tree) -> None:
    measured = json.loads((tree.run / "results.json").read_text())["unseen"]["mean_confidence"]
    assert 0.5 <= measured["mean"] <= 1
    percent = f"{100 * measured['mean']:.2f} +- {100 * measured['deviation']:.2f} %"
    assert f"mean confidence          {percent}" in tree.printed["train"]
    card = (tree.run / "model" / "README.md").read_text()
    assert f"| mean confidence | {measured['mean']:.4f} +- " in card
    assert "name: mean confidence" in card  # of the hub's list
    assert "Mean confidence, %" in (tree.root / "report.html").read_text()
    table = (tree.root / "report-figures" / "table-mean-confidence.csv").read_text()
    assert f"Smooth ERM,light,{100 * measured['mean']:.4f}," in table


def test_a_run_that_is_older_than_the_metric_says_so_and_is_not_damaged(tree: Tree) -> None:
    assert "mean confidence          not measured" in tree.printed["older"]
    page = (tree.root / "report.html").read_text()
    assert "is damaged" not in page
    assert "The 2 runs behind this" in page
