"""The plans of `experiments/recipe_rounds.py`: each can be read, and a small one is trained and taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from experiments import recipe_rounds
from experiments.recipe_rounds import cells_of, compared, units_of

PLANS = sorted((ROOT / "experiments").glob("recipe_rounds_*.json"))
TINY = {"steps": 2, "images_per_domain": 4, "repeats": 1, "validations": 1, "latent_width": 16}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_cell_of_a_plan_is_an_experiment_of_its_own(plan: Path) -> None:
    for whole in json.loads(plan.read_text()):
        one = whole | {"seeds": whole["seeds"][:2]}
        cells = list(cells_of(one))
        assert len(cells) == len(one["seeds"]) * len(one["tasks"]) * len(one["variants"])
        assert len({experiment.identity() for _, experiment in cells}) == len(cells)
        for task in one["tasks"]:
            assert task["target"] not in task.get("without", [])


def test_a_recipe_is_chosen_without_a_look_at_the_domain_that_is_hidden() -> None:
    plan = json.loads((ROOT / "experiments" / "recipe_rounds_choose.json").read_text())
    for one in plan:
        assert all(task["without"] for task in one["tasks"])
        for _, experiment in cells_of(one):
            assert set(experiment.without).isdisjoint({experiment.target})


@pytest.mark.whole
def test_a_plan_is_trained_once_and_its_record_grows_cell_by_cell(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: dict[str, Any] = {"round": "small", "dataset": str(folder), "tasks": [{"target": "sketch"}]}
    one |= {"seeds": [1], "shared": TINY | {"backbone": "digits", "weights": "none"}}
    one["variants"] = {"ERM": {"algorithm": "erm"}, "tuned": {"algorithm": "metavib", "fine_tuning": 1}}
    plan, out = tmp_path / "plan.json", tmp_path / "record.json"
    plan.write_text(json.dumps([one]))
    arguments = ["recipe_rounds.py", str(plan), str(out), "--runs", str(tmp_path / "runs")]
    trained: list[str] = []
    plain: Callable[..., Any] = recipe_rounds.run_grid

    def counted(cells: Any, *more: Any, **named: Any) -> Any:
        trained.extend(cell.experiment.algorithm for cell in cells)
        return plain(cells, *more, **named)

    monkeypatch.setattr(recipe_rounds, "run_grid", counted)
    monkeypatch.setattr(sys, "argv", arguments)
    recipe_rounds.main()
    first = json.loads(out.read_text())
    recipe_rounds.main()
    assert trained == ["erm", "metavib"]
    assert json.loads(out.read_text()) == first
    assert [cell["variant"] for cell in first["cells"]] == ["ERM", "tuned"]
    assert all(0 <= cell["accuracy"] <= 1 for cell in first["cells"])
    assert all(cell["seconds"] > 0 for cell in first["cells"])
    assert first["rounds"]["small"]["compared"]["tuned"]["cells"] == 1
    assert "recipe_rounds.py" in first["command"]


@pytest.mark.processes
def test_processes_share_a_plan_and_train_each_cell_once(folder: Path, tmp_path: Path) -> None:
    one: dict[str, Any] = {"round": "shared", "dataset": str(folder), "tasks": [{"target": "sketch"}]}
    one |= {"seeds": [1, 2], "shared": TINY | {"backbone": "digits", "weights": "none"}}
    one["variants"] = {"ERM": {"algorithm": "erm"}, "VIB": {"algorithm": "vib"}}
    plan, out, runs = tmp_path / "plan.json", tmp_path / "record.json", tmp_path / "runs"
    plan.write_text(json.dumps([one]))
    command = [sys.executable, str(ROOT / "experiments" / "recipe_rounds.py"), str(plan), str(out)]
    subprocess.run([*command, "--runs", str(runs), "--processes", "2", "--threads", "1"], check=True)
    cells = [(cell["variant"], cell["seed"]) for cell in json.loads(out.read_text())["cells"]]
    assert sorted(cells) == [("ERM", 1), ("ERM", 2), ("VIB", 1), ("VIB", 2)]


def test_small_networks_are_trained_variant_by_variant_and_others_seed_by_seed() -> None:
    one: dict[str, Any] = {
        "round": "r",
        "dataset": "pacs",
        "tasks": [{"target": "photo"}, {"target": "sketch"}],
    }
    one |= {"seeds": [1, 2], "variants": {"ERM": {"algorithm": "erm"}, "VIB": {"algorithm": "vib"}}}
    small = one | {"shared": {"backbone": "digits", "weights": "none"}}
    assert [len(unit) for unit in units_of(small)] == [4, 4]
    assert [len(unit) for unit in units_of(one)] == [2, 2, 2, 2]
    assert [unit[0][0]["seed"] for unit in units_of(one)] == [1, 1, 2, 2]


def test_variants_are_compared_over_the_cells_that_both_have() -> None:
    def cell(variant: str, target: str, accuracy: float) -> dict[str, Any]:
        return {"variant": variant, "target": target, "seed": 1, "accuracy": accuracy, "ece": 0.1}

    cells = [cell("ERM", "a", 0.5), cell("ERM", "b", 0.6), cell("ERM", "c", 0.1)]
    found = compared([*cells, cell("best", "a", 0.6), cell("best", "b", 0.71)])
    assert found["best"]["ahead"] == pytest.approx(0.105)
    assert 0 < found["best"]["p"] < 0.05
    assert "ahead" not in found["ERM"]
