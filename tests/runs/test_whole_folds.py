from dataclasses import replace
from pathlib import Path

import pytest

from metavib.core.errors import UserError
from metavib.runs.whole_folds import fold_cells
from metavib.training.experiment import experiment_from
from metavib.training.run_directory import RunDirectory


def experiment(**changes):
    values = {"dataset": "rotated-digits", "target": "0", "algorithm": "erm", "preset": "demo", "seed": 0}
    return experiment_from(values | changes)


def test_each_source_is_left_out_beside_the_target(tmp_path: Path) -> None:
    cells = fold_cells(RunDirectory(tmp_path), experiment(), ["15", "30", "45"])
    assert [cell.experiment.target for cell in cells] == ["15", "30", "45"]
    assert {cell.experiment.without for cell in cells} == {("0",)}
    assert {cell.out.parent for cell in cells} == {tmp_path / "folds"}
    assert len({cell.out for cell in cells}) == 3
    final = fold_cells(RunDirectory(tmp_path), experiment(target=None), ["15", "30", "45"])
    assert {cell.experiment.without for cell in final} == {()}


def test_two_sources_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Use --folds heads"):
        fold_cells(RunDirectory(tmp_path), experiment(), ["15", "30"])


def test_a_run_that_peeked_is_refused(tmp_path: Path) -> None:
    honest = experiment()
    peeked = replace(honest, training=replace(honest.training, selection="oracle"))
    with pytest.raises(UserError, match="are not fair"):
        fold_cells(RunDirectory(tmp_path), peeked, ["15", "30", "45"])
