from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metavib.core.errors import UserError
from metavib.reports.figure import Figure, Missing
from metavib.reports.information_plane import information_plane, panel_names, panels_of
from metavib.training.information_recording import LAYERS
from metavib.training.run_directory import RunDirectory


@pytest.fixture
def run(record: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Makes a run with an information plane of three steps: I(X;T) falls, I(T;Y) rises, the code ahead."""

    def make(algorithm: str = "metavib", beta: float | None = None, **others: Any) -> Any:
        settings = {} if beta is None else {"beta": beta}
        made = record(algorithm=algorithm, settings=settings, **others)
        directory = RunDirectory(tmp_path / "-".join(map(str, (algorithm, beta, *others.values()))))
        directory.path.mkdir()
        for step in (0, 50, 100):
            line: dict[str, Any] = {"step": step, "images": 64, "label_entropy": 2.0}
            for number, layer in enumerate(LAYERS):
                line[layer] = {
                    "pairwise_input": 5.0 - step / 100 - number,
                    "pairwise_label": 0.5 + step / 100 + number / 10,
                    "pairwise_shuffled": 0.25 - step / 1_000,
                    "binned_input": 6.0,
                    "binned_label": 2.0,
                }
            directory.log_information(line)
        return replace(made, directory=directory)

    return make


def test_the_data_has_every_step_and_layer_with_both_estimators(run: Callable[..., Any]) -> None:
    (figure,) = information_plane([run(beta=0.01)])
    assert isinstance(figure, Figure)
    assert len(figure.rows) == 3 * 3
    (row,) = [dict(zip(figure.header, r, strict=True)) for r in figure.rows if r[4:6] == (50, "code")]
    assert row == {
        "run": "MetaVIB",
        "beta": 0.01,
        "unseen": "0",
        "seed": 0,
        "step": 50,
        "layer": "code",
        "images": 64,
        "label_entropy": 2.0,
        "pairwise_input": 2.5,
        "pairwise_label": 1.2,
        "pairwise_shuffled": 0.2,
        "binned_input": 6.0,
        "binned_label": 2.0,
    }
    assert figure.csv().splitlines()[0] == ",".join(figure.header)


def test_there_is_one_panel_for_each_beta_from_the_largest(run: Callable[..., Any]) -> None:
    runs = [run(beta=beta) for beta in (0.01, 1.0, 0.001, 0.1)]
    (figure,) = information_plane(runs)
    assert isinstance(figure, Figure)
    assert panel_names(panels_of(runs)) == ["β = 1", "β = 0.1", "β = 0.01", "β = 0.001"]
    for name in panel_names(panels_of(runs)):
        assert f">{name}</text>" in figure.svg
    assert (figure.svg.count("I(X;T), bits"), figure.svg.count("I(T;Y), bits")) == (4, 2)
    assert "not drawn" not in figure.caption


def test_no_empty_panel_is_drawn(run: Callable[..., Any]) -> None:
    three = [run(beta=beta) for beta in (1.0, 0.1, 0.01)]
    drawn = [information_plane(runs)[0] for runs in (three, [*three, run(beta=0.001)])]
    assert [figure.svg.count("I(X;T), bits") for figure in drawn if isinstance(figure, Figure)] == [3, 4]
    assert [figure.svg.count('<g id="axes_') for figure in drawn if isinstance(figure, Figure)] == [4, 5]


def test_of_runs_with_the_same_beta_the_first_is_drawn_and_the_caption_says_so(
    run: Callable[..., Any],
) -> None:
    (figure,) = information_plane([run(beta=0.1, seed=3), run(beta=0.1, seed=4), run(beta=0.1, target="15")])
    assert isinstance(figure, Figure)
    assert {row[2:4] for row in figure.rows} == {("0", 3)}
    assert "'0' unseen, seed 3, the first of each beta (2 more are not drawn)" in figure.caption


def test_methods_are_kept_apart_and_baseline_has_no_beta(run: Callable[..., Any]) -> None:
    panels = panels_of([run("metavib", 0.1), run("vib", 0.1), run("baseline")])
    assert panel_names(panels) == ["MetaVIB, β = 0.1", "VIB, β = 0.1", "Baseline, β = 0"]


def test_the_caption_says_how_it_was_estimated_and_what_shuffled_labels_give(run: Callable[..., Any]) -> None:
    (figure,) = information_plane([run(beta=0.1)])
    assert isinstance(figure, Figure)
    assert "64 source validation images" in figure.caption
    assert "Kolchinsky" in figure.caption
    assert "still says up to 0.25 bits" in figure.caption


def test_the_words_say_where_each_layer_goes(run: Callable[..., Any]) -> None:
    (figure,) = information_plane([run(beta=0.1)])
    assert isinstance(figure, Figure)
    assert "the code z from 3.00 and 0.70 to 2.00 and 1.70" in figure.alternative


def test_the_same_records_give_the_same_bytes_and_the_drawing_is_lines_only(run: Callable[..., Any]) -> None:
    runs = [run(beta=beta) for beta in (1.0, 0.1, 0.01)]
    (first,), (again,) = information_plane(runs), information_plane(runs)
    assert isinstance(first, Figure)
    assert first == again
    assert "<image" not in first.svg


def test_runs_without_records_are_left_out_and_where_all_are_the_flag_is_named(
    record: Callable[..., Any], run: Callable[..., Any]
) -> None:
    (missing,) = information_plane([record(), record(algorithm="erm")])
    assert isinstance(missing, Missing)
    assert "metavib train ... --record-information" in missing.why
    (figure,) = information_plane([record(), run(beta=0.5)])
    assert isinstance(figure, Figure)
    assert {row[1] for row in figure.rows} == {0.5}


def test_a_single_record_is_drawn(run: Callable[..., Any]) -> None:
    one = run(beta=0.1)
    first = one.directory.information.read_text().splitlines(keepends=True)[0]
    one.directory.information.write_text(first)
    (figure,) = information_plane([one])
    assert isinstance(figure, Figure)
    assert len(figure.rows) == 3


def test_a_damaged_file_is_named_as_such(run: Callable[..., Any]) -> None:
    one = run(beta=0.1)
    one.directory.information.write_text('{"step": 0}\n')
    with pytest.raises(UserError, match=r"information\.jsonl is damaged"):
        information_plane([one])
