"""The live table of a sweep, and its example file."""

import pytest
from made_up_results import results_like
from places import ROOT

from metavib.core.config_file import read_config
from metavib.interfaces.cli.training import boards
from metavib.interfaces.cli.training.boards import SweepBoard
from metavib.runs.grid import CellResult
from metavib.runs.sweep.plan import plan_from


@pytest.fixture
def board(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "PLAIN_SECONDS", 0.0)
    values = {"dataset": str(folder), "targets": ["art", "sketch"], "algorithms": ["erm", "metavib"]}
    plan = plan_from(values | {"backbone": "digits", "weights": "none"}, None)
    return SweepBoard(plan, tmp_path / "out")


def test_the_table_says_what_is_done_runs_and_failed(board, cell, capsys):
    (board.logged.parent).mkdir()
    cells = [cell("art", seed) for seed in range(4)]
    with board:
        board.expect(dict.fromkeys(cells, ("erm", "art")), "choosing")
        board.finished(CellResult(cells[0], results_like(), None))
        board.finished(CellResult(cells[1], None, "broke down"))
        board.running(cells[2:3], 3, 9)
        rows = [line.split("  ") for line in board.text().splitlines()]
        assert [part.strip() for part in rows[3] if part.strip()] == [
            "erm",
            "1/4, 1 failed, step 3 of 9",
            "-",
        ]
        assert [part.strip() for part in rows[4] if part.strip()] == ["metavib", "-", "-"]
        board.waiting(cells[2:3])
        assert "step" not in board.text()
        board.warn("a worker was lost")
    err = capsys.readouterr().err
    assert "choosing: 4 runs." in err
    assert "choosing: 2 of 4 runs done; 1 running: step 3 of 9" in err
    assert "a worker was lost" in err
    assert board.logged.read_text().splitlines() == [
        f"{cells[1].out.name} has no results: broke down",
        "a worker was lost",
    ]


def test_the_example_is_a_good_file():
    path = ROOT / "examples" / "sweep.yaml"
    plan = plan_from(read_config(path), None)
    assert (plan.targets, plan.search, plan.trials) == (("0", "75"), "random", 4)
    assert plan.space["learning_rate"].log
