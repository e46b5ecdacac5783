"""`metavib report`: the page and the files beside it, and a clear word for everything else."""

import json
import re
import shutil

import pytest

from metavib.reports.figures import FIGURES

pytestmark = pytest.mark.whole


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
    from metavib.interfaces.cli.main import main

    with pytest.raises(SystemExit):
        main(["report", "--help"])
    text = " ".join(capsys.readouterr().out.split()).replace(
        "- ", "-"
    )  # a name may be cut at the end of a line
    assert all(name in text for name in FIGURES)


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", [r"$\frac{$", "$", "$x$", r"\$", "a<b>&", "_^{", "%s{0}"])
def test_a_class_is_no_formula(metavib, make_folder, training, tmp_path, page, name):
    folder = make_folder(tmp_path / "own", classes=f"{name} dog")
    assert metavib(*training(data=folder)).status == 0
    status, _, err = metavib("report", tmp_path / "run", "-o", page)
    assert status == 0, err
    shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert shown in (page.parent / "page-figures" / "confusion.svg").read_text()
    assert shown in page.read_text()


def test_powers_of_ten_are_drawn_as_such(metavib, finished, page):
    assert metavib("report", finished.run, "-o", page, "--figure", "training").status == 0
    drawn = (page.parent / "page-figures" / "training.svg").read_text()
    assert "mathdefault" not in re.sub("<!--.*?-->", "", drawn, flags=re.DOTALL)


@pytest.mark.parametrize(
    "text",
    [
        '{"mean": %s, "deviation": 0}' % ("9" * 400),
        '{"mean": 1e400, "deviation": 0}',
        '{"mean": 1e308, "deviation": 0}',
        '{"mean": -5, "deviation": 0}',
        '{"mean": NaN, "deviation": NaN}',
        '{"mean": "high"}',
    ],
)
def test_numbers_that_are_no_shares_do_not_reach_a_table(metavib, finished_copy, page, text):
    path = finished_copy.run / "results.json"
    record = json.loads(path.read_text())
    record["unseen"]["accuracy"] = "HERE"
    path.write_text(json.dumps(record).replace('"HERE"', text))
    status, _, err = metavib("report", finished_copy.run, "-o", page, "--figure", "training")
    assert "Traceback" not in err
    assert (status, len(err.splitlines())) == (2, 1) or status == 0


@pytest.mark.parametrize(
    "names", [["a\ud800", "b"], ["\x1b[2J\0", "b"], ["x" * 100_000, "b"], ["a\u202e", "b"]]
)
def test_class_names_that_no_page_can_hold_are_made_readable(metavib, finished_copy, page, names):
    changed(finished_copy.run / "results.json", classes=names, dataset=names[0], protocol=names[0])
    with (finished_copy.run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 3, "split": names[0], names[0]: 1.0}) + "\n")
    status, _, err = metavib("report", finished_copy.run, "-o", page)
    assert status == 0, err
    text = page.read_text()
    assert not {"\x1b", "\0", "\u202e"} & set(text)
    assert len(text) < 5_000_000


@pytest.mark.parametrize("classes", [[], [1, 2], [["cat"], "dog"], [{"a": 1}], [None]])
def test_results_that_name_no_classes_are_damaged(refused, finished_copy, page, classes):
    changed(finished_copy.run / "results.json", classes=classes)
    said = refused("report", finished_copy.run, "-o", page)
    assert "does not name its classes" in said or "results.json is damaged: classes cannot be" in said
    assert ".." not in said.replace(str(finished_copy.run), "")


def test_a_model_of_other_classes_than_the_images_is_not_asked(metavib, finished_copy, page):
    changed(finished_copy.run / "results.json", classes=["cat", "dog", "cow"])
    status, _, err = metavib("report", finished_copy.run, "-o", page)
    assert status == 0
    assert "name other classes than the images" in err


@pytest.mark.parametrize("value", [1e308, -1e300, 10**299, 1e39])
def test_a_log_of_numbers_that_no_drawing_can_hold_is_drawn_without_them(metavib, finished_copy, page, value):
    with (finished_copy.run / "metrics.jsonl").open("a") as log:
        for record in ({"step": 4, "classification": value}, {"step": 10**200, "classification": 1.0}):
            log.write(json.dumps(record) + "\n")
    status, _, err = metavib("report", finished_copy.run, "-o", page, "--figure", "training")
    assert status == 0, err
