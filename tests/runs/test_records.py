"""Run directories of all kinds: read, grouped, or named with what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from metavib.core.errors import UserError
from metavib.runs.records import in_order, read_runs


def changed(run: Path, name: str, **values: Any) -> None:
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_is_found_below_a_folder(finished):
    (group,), problems = read_runs([finished.run.parent])
    (run,) = group.runs
    assert problems == []
    assert (group.dataset, group.protocol, group.classes) == ("images", "folder", ("cat", "dog"))
    assert (run.title, run.experiment.target, group.targets) == ("MetaVIB", "sketch", ("sketch",))
    assert run.log[-1]["step"] == 3
    assert run.results.to_json() == json.loads((finished.run / "results.json").read_text())


def test_a_run_that_is_named_twice_counts_once(finished):
    twice = [finished.run, finished.run.parent, finished.run / ".." / finished.run.name]
    (group,), _ = read_runs(twice)
    assert len(group.runs) == 1


def test_other_datasets_protocols_and_classes_are_other_groups(finished, tmp_path):
    changes = ({}, {"dataset": "others"}, {"protocol": "another"}, {"classes": ["cat", "cow"]})
    for number, values in enumerate(changes):
        run = shutil.copytree(finished.run, tmp_path / str(number))
        changed(run, "results.json", **values)
    groups, problems = read_runs([tmp_path])
    assert (len(groups), problems) == (4, [])
    assert groups == read_runs([tmp_path / str(number) for number in (3, 1, 2, 0)])[0]  # in any order


def test_runs_stand_by_what_they_are_wherever_they_lie(finished, tmp_path):
    wanted = [("erm", "15", 0), ("metavib", "0", 1), ("metavib", "15", 0), ("metavib", "100", 0)]
    for number, (algorithm, target, seed) in enumerate(reversed(wanted)):
        run = shutil.copytree(finished.run, tmp_path / str(number))
        experiment = json.loads((run / "experiment.json").read_text())["experiment"]
        own = experiment | {"algorithm": algorithm, "target": target, "seed": seed}
        own["method"] = experiment["method"] if algorithm == "metavib" else {}
        changed(run, "experiment.json", experiment=own)
    (group,), _ = read_runs([tmp_path])
    assert [(r.experiment.algorithm, r.experiment.target, r.experiment.seed) for r in group.runs] == wanted
    assert group.targets == ("15", "0", "100")


def test_numbers_stand_by_size_and_before_names():
    assert sorted(["b", "15", "a", "5", "-1.5"], key=in_order) == ["-1.5", "5", "15", "a", "b"]


def test_an_unfinished_run_is_a_problem_and_not_a_group(finished_copy):
    (finished_copy.run / "results.json").unlink()
    groups, (problem,) = read_runs([finished_copy.run])
    assert groups == []
    assert problem.path == finished_copy.run
    assert "not finished" in problem.why


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("experiment.json", "{", "cannot be read"),
        ("experiment.json", "{}", "is damaged: its format is None"),
        ("experiment.json", '{"format": 1, "experiment": 3}', "is damaged"),
        ("experiment.json", '{"format": 1, "data": {}, "experiment": {"dataset": "x"}}', "is damaged"),
        ("experiment.json", '{"format": 9}', "was written by a newer version"),
        ("results.json", "[]", "holds no JSON object"),
        ("results.json", '{"format": 1, "dataset": "x"}', "lacks ['experiment', 'protocol'"),
        ("results.json", '{"format": 2, "dataset": "x"}', "was written by a newer version"),
    ],
)
def test_a_damaged_run_is_named_and_does_no_harm(finished, finished_copy, name, text, why):
    (finished_copy.run / name).write_text(text)
    groups, (problem,) = read_runs([finished.run, finished_copy.run])
    assert len(groups) == 1
    assert problem.path == finished_copy.run
    assert why in problem.why


def test_lines_of_the_log_that_are_no_records_are_passed_over(finished_copy):
    metrics = finished_copy.run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text("{}\n" + whole + '{"step": 4, "cl')
    (group,), _ = read_runs([finished_copy.run])
    assert [json.dumps(line) for line in group.runs[0].log] == whole.splitlines()


def test_a_folder_without_runs_is_a_problem_and_no_folder_an_error(finished, tmp_path):
    _, (problem,) = read_runs([tmp_path, finished.run])
    assert (problem.path, problem.why) == (tmp_path, "holds no run")
    with pytest.raises(UserError, match="nowhere"):
        read_runs([tmp_path / "nowhere"])
