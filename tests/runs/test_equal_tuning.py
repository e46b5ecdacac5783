"""experiments/equal_tuning.py and gathered_runs.py, from candidates and run folders to records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from metavib.algorithms import ALGORITHMS
from metavib.interfaces.cli.main import main
from metavib.training.experiment import experiment_from

pytestmark = pytest.mark.whole


def called(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "experiments" / script, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["rotated-mnist", "pacs"])
def test_every_method_has_as_many_candidates_of_settings_that_it_knows(name: str) -> None:
    one = json.loads((ROOT / "experiments" / "equal_tuning_rounds.json").read_text())[name]
    assert set(one["methods"]) == set(ALGORITHMS)
    assert len({len(method["candidates"]) for method in one["methods"].values()}) == 1
    hidden, left_out = one["tasks"][0]
    for method in one["methods"].values():
        values = {"dataset": one["dataset"], "target": left_out, "without": hidden, "seed": 0}
        tried = [
            experiment_from(values | {"algorithm": method["algorithm"]}, one["shared"] | candidate).identity()
            for candidate in method["candidates"]
        ]
        assert len(set(tried)) == len(tried)


def test_every_candidate_is_measured_on_every_task_and_the_best_is_chosen(tmp_path: Path) -> None:
    one = {
        "dataset": "rotated-digits",
        "tasks": [["0", "15"], ["75", "60"]],
        "seeds": [1],
        "shared": {"steps": 3, "images_per_domain": 16, "warmup": 0},
        "methods": {
            "erm": {"algorithm": "erm", "candidates": [{"learning_rate": 0.01}, {"learning_rate": 1e-9}]},
            "low_rank": {"algorithm": "low_rank", "candidates": [{"domain_rate": 0.1}]},
        },
    }
    rounds, out = tmp_path / "rounds.json", tmp_path / "out.json"
    rounds.write_text(json.dumps({"short": one}))
    finished = called("equal_tuning.py", out, "--rounds", rounds, "--round", "short")
    assert finished.returncode == 0, finished.stderr
    record = json.loads(out.read_text())
    assert list(record["methods"]) == ["erm", "low_rank"]
    candidates = record["methods"]["erm"]["candidates"]
    assert [candidate["settings"] for candidate in candidates] == one["methods"]["erm"]["candidates"]
    for candidate in candidates:
        accuracies = [task["accuracy"] for task in candidate["tasks"]]
        assert len(accuracies) == 2
        assert candidate["mean"] == pytest.approx(sum(accuracies) / 2, abs=0.01)
    best = max(candidates, key=lambda candidate: candidate["mean"])
    assert record["methods"]["erm"]["chosen"] == best["settings"]
    assert candidates[0]["tasks"] != candidates[1]["tasks"]
    again = called("equal_tuning.py", out, "--rounds", rounds, "--round", "short")
    assert again.stdout == ""  # nothing is trained twice


def test_runs_become_lists_and_lists_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    grid = ["rotated-digits", "--target", "all", "--seeds", "1", "--algorithm", "erm", "--steps", "2"]
    options = ["--set", "images_per_domain=10", "--set", "validations=1", "--out", str(runs)]
    assert main(["train", *grid, *options]) == 0
    capsys.readouterr()
    listed, out = tmp_path / "list.json", tmp_path / "table.json"
    finished = called("gathered_runs.py", "list", listed, runs)
    assert finished.stdout == "6 runs\n", finished.stderr
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, listed, "--command", "metavib train")
    assert finished.returncode == 0, finished.stderr
    record = json.loads(out.read_text())
    (row,) = record["table"]["rows"]
    assert (record["command"], row["algorithm"], len(row["runs"])) == ("metavib train", "erm", 6)

    whole = json.loads(listed.read_text())
    parts = [tmp_path / "first.json", tmp_path / "second.json"]
    for part, own in zip(parts, (whole[1:], [run | {"algorithm": "vib"} for run in whole[2:]]), strict=True):
        part.write_text(json.dumps(own))
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, *parts)
    assert finished.stdout == "ERM lacks [('0', 0)]\nVIB lacks [('0', 0), ('15', 0)]\n", finished.stderr
    record = json.loads(out.read_text())
    assert (record["table"]["rows"], len(record["unfinished"])) == ([], 9)  # in no table, and not lost

    parts[0].write_text(json.dumps([whole[0]]))
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, parts[0], "--add", out)
    assert finished.returncode == 0, finished.stderr
    added = json.loads(out.read_text())
    assert (added["table"]["rows"], len(added["unfinished"])) == ([row], 4)

    parts[0].write_text(json.dumps([whole[0] | {"steps": 3}]))
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, parts[0], "--add", out)
    assert finished.returncode == 1  # other runs than those that are there
    assert json.loads(out.read_text()) == added

    of_betas = [
        run | {"algorithm": "metavib", "method": {"beta": beta}} for beta in (1, 0.1) for run in whole
    ]
    listed.write_text(json.dumps(of_betas[:-1]))
    finished = called("gathered_runs.py", "table", "beta-rotated-mnist", out, listed)
    assert finished.returncode == 0, finished.stderr
    record = json.loads(out.read_text())
    (row,) = record["table"]["rows"]  # rows that a setting makes
    assert (row["settings"], len(row["runs"]), len(record["unfinished"])) == ({"beta": 1}, 6, 5)
    listed.write_text(json.dumps(of_betas[-1:]))
    finished = called("gathered_runs.py", "table", "beta-rotated-mnist", out, listed, "--add", out)
    rows = json.loads(out.read_text())["table"]["rows"]
    assert [row["settings"] for row in rows] == [{"beta": 1}, {"beta": 0.1}], finished.stderr

    listed.write_text(json.dumps([run | {"seed": 1} for run in of_betas]))
    finished = called("gathered_runs.py", "table", "beta-rotated-mnist", out, listed, "--add", out)
    table = json.loads(out.read_text())["table"]
    assert [len(row["runs"]) for row in table["rows"]] == [12, 12], finished.stderr
    assert "over 2 seeds" in table["caption"]

    erm = [run | {"seed": seed} for run in whole for seed in (0, 1, 2)]
    listed.write_text(json.dumps(erm + [run | {"algorithm": "vib"} for run in whole]))
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, listed)
    record = json.loads(out.read_text())
    assert [len(row["runs"]) for row in record["table"]["rows"]] == [18, 6], finished.stderr
    assert (
        "over 3 seeds;" in record["table"]["caption"]
    )  # a row may have fewer seeds, and the caption says so
    assert record["table"]["caption"].endswith(" Over fewer seeds: VIB (1).")
    listed.write_text(json.dumps([run | {"algorithm": "baseline"} for run in whole]))
    finished = called("gathered_runs.py", "table", "rotated-mnist", out, listed, "--add", out)
    record = json.loads(out.read_text())
    assert record["table"]["caption"].endswith(" Over fewer seeds: Baseline (1), VIB (1)."), finished.stderr
