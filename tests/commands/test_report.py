"""`metavib report`: the page and the files beside it, and a clear word for everything else."""

import json
import shutil

import pytest

from metavib.reports.collection import FIGURES


@pytest.fixture
def page(tmp_path):
    return tmp_path / "out" / "page.html"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_becomes_a_page_and_a_folder_of_figures_and_the_same_twice(metavib, finished, page):
    status, out, err = metavib("report", finished.run, "-o", page, "--json")
    assert status == 0, err
    said = json.loads(out)
    assert said["page"] == str(page)
    assert f"report written to {page}" in err
    folder = page.parent / "page-figures"
    names = {path.name for path in folder.iterdir()}
    for name in ("training", "confusion", "cases"):
        assert {f"{name}.svg", f"{name}.png", f"{name}.csv"} <= names
    assert "table-accuracy.csv" in names
    assert sorted(said["files"]) == sorted(str(path) for path in folder.iterdir())
    assert "<h2" in page.read_text()

    before = contents(page.parent)
    assert metavib("report", finished.run, "-o", page).status == 0
    assert contents(page.parent) == before


def test_one_figure_makes_its_files_and_no_page(metavib, finished, page):
    status, _, err = metavib("report", finished.run, "-o", page, "--figure", "confusion,confusion")
    assert status == 0, err
    folder = page.parent / "page-figures"
    assert sorted(path.name for path in folder.iterdir()) == [
        "confusion.csv",
        "confusion.png",
        "confusion.svg",
    ]
    assert not page.exists()


def test_a_training_figure_needs_no_model(metavib, finished_copy, page):
    shutil.rmtree(finished_copy.run / "model")
    assert metavib("report", finished_copy.run, "-o", page, "--figure", "training").status == 0


def test_groups_have_folders_of_their_own_and_bad_runs_are_listed(
    metavib, finished, finished_copy, page, tmp_path
):
    results = finished_copy.run / "results.json"
    results.write_text(json.dumps(json.loads(results.read_text()) | {"dataset": "my photos/2"}))
    half = shutil.copytree(finished.run, tmp_path / "half")
    (half / "results.json").unlink()
    status, out, err = metavib("report", tmp_path, finished.run, "-o", page, "--json")
    assert status == 0, err
    folders = {path.name for path in (page.parent / "page-figures").iterdir()}
    assert folders == {"images", "my-photos-2"}
    assert list(json.loads(out)["problems"]) == [str(half)]
    assert f"left out: {half} is not finished" in err
    assert "Not in this report" in page.read_text()
    assert str(half) in page.read_text()


def test_a_run_without_its_model_is_in_the_tables_and_lines_say_what_is_missing(metavib, finished_copy, page):
    shutil.rmtree(finished_copy.run / "model")
    status, out, err = metavib("report", finished_copy.run, "-o", page, "--json")
    assert status == 0, err
    assert "confusion" in json.loads(out)["missing"]
    assert "no figure confusion: No model could be asked" in err
    assert "No model could be asked" in page.read_text()
    assert "Class-averaged accuracy" in page.read_text()


def test_a_figure_alone_that_cannot_be_drawn_is_refused(refused, finished_copy, page):
    shutil.rmtree(finished_copy.run / "model")
    line = refused("report", finished_copy.run, "-o", page, "--figure", "confusion")
    assert "there is no figure to draw. Confusion: No model could be asked" in line
    assert not page.parent.exists()


def test_no_runs_are_refused(refused, finished_copy, page, tmp_path):
    assert "RUNS" in refused("report")
    assert "nowhere" in refused("report", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused("report", tmp_path / "empty", "-o", page)
    (finished_copy.run / "results.json").unlink()
    assert "is not finished" in refused("report", finished_copy.run, "-o", page)
    assert not page.parent.exists()


def test_an_unknown_figure_is_suggested_the_nearest(refused, finished):
    line = refused("report", finished.run, "--figure", "confuson")
    assert "did you mean 'confusion'" in line
    assert all(name in line for name in FIGURES)


def test_a_folder_is_no_name_of_a_page(refused, finished, tmp_path):
    assert "is a folder" in refused("report", finished.run, "-o", tmp_path)


def test_the_help_names_every_figure(capsys):
    from metavib.cli import main

    with pytest.raises(SystemExit):
        main(["report", "--help"])
    text = " ".join(capsys.readouterr().out.split()).replace(
        "- ", "-"
    )  # a name may be cut at the end of a line
    assert all(name in text for name in FIGURES)
