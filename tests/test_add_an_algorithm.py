"""The example of docs/add-an-algorithm.md: its mathematics, its training, and that the page says the same."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_episodes import assert_is_erm, built, episode_of

from metavib.algorithms import ALGORITHMS
from metavib.interfaces.cli.main import main

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "examples" / "coral.py", ROOT / "docs" / "add-an-algorithm.md"


@pytest.fixture
def coral(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of the example, registered for as long as a test takes."""
    for registry in (ALGORITHMS, sys.modules):
        monkeypatch.setitem(registry, "coral", None)  # and taken away again at the end
    del sys.modules["coral"]
    monkeypatch.syspath_prepend(FILE.parent)
    return importlib.import_module("coral")


def test_without_weight_it_is_erm(coral: Any) -> None:
    algorithm, episode = built(coral.CORAL, weight=0.0), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, {}), episode)


def test_the_difference_is_zero_for_the_same_features_and_as_computed_by_hand_else(coral: Any) -> None:
    one = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert coral.difference(one, one.flip(0)) == 0
    # Means (1, 0) and (1, 3); covariances diag(2, 0) and diag(2, 18).
    other = torch.tensor([[0.0, 0.0], [2.0, 6.0]])
    covariance_apart = torch.tensor([[0.0, 6.0], [6.0, 18.0]]).square().sum() / 16
    assert coral.difference(one, other) == 9 / 2 + covariance_apart


def test_it_is_trained_in_a_grid_beside_erm(
    coral: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "rotated-digits", "--target", "0", "--algorithm", "erm,coral", "--preset", "demo"]
    command += ["--steps", "20", "--seed", "1", "--set", "weight=0.1,10", "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["algorithm"] for run in runs].count("coral") == 2
    logs = [path.read_text().splitlines() for path in tmp_path.glob("*coral*/metrics.jsonl")]
    assert len(logs) == 2
    assert all(json.loads(log[0])["alignment"] > 0 for log in logs)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
def test_the_page_shows_what_the_example_says(block: str) -> None:
    told = [line.strip() for line in FILE.read_text().splitlines()]
    for line in filter(None, map(str.strip, block.splitlines())):
        assert line in told


def test_the_commands_of_the_page_are_understood(coral: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "coral"]) == 0
    assert "weight of the alignment" in capsys.readouterr().out
