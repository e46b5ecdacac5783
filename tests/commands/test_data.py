"""`metavib data`: what is there, what is wrong, and whether training could start."""

import json
import shutil

from PIL import Image


def test_domains_and_classes_are_counted(metavib, folder):
    (folder / "photo" / "dog" / "3.png").unlink()
    status, out, err = metavib("data", folder)
    assert (status, out) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in err.splitlines() if line.strip()}
    assert rows["class"] == ["art", "cartoon", "photo", "sketch", "all"]
    assert rows["cat"] == ["4", "4", "4", "4", "16"]
    assert rows["dog"] == ["4", "4", "3", "4", "15"]
    assert rows["all"] == ["8", "8", "7", "8", "31"]
    assert "training can start" in err


def test_every_problem_is_named_and_an_error_is_status_2(metavib, folder):
    (folder / "photo" / "cat" / "bad.png").write_bytes(b"no image")
    shutil.copy(folder / "art" / "cat" / "0.png", folder / "sketch" / "dog" / "copy.png")
    status, _, err = metavib("data", folder)
    assert status == 2
    assert "error: photo/cat/bad.png" in err
    assert "art/cat/0.png = sketch/dog/copy.png" in err
    assert err.rstrip().endswith("training cannot start: fix the errors above.")


def test_too_few_domains_to_hold_one_out_are_named(metavib, make_folder, tmp_path):
    status, _, err = metavib("data", make_folder(tmp_path / "few", domains="photo sketch"))
    assert status == 0
    assert "warning: only 2 domain(s)" in err


def test_json_says_the_same(metavib, folder):
    Image.new("L", (50, 10)).save(folder / "photo" / "cat" / "wide.png")
    status, out, _ = metavib("data", folder, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["can_train"] is True
    assert report["counts"]["photo"] == {"cat": 5, "dog": 4}
    assert report["sizes"] == {"width": [20, 20, 50], "height": [10, 20, 20]}
    assert report["modes"] == {"RGB": 32, "L": 1}
    assert {problem["severity"] for problem in report["problems"]} == {"warning"}


def test_json_of_a_bad_folder_is_printed_too(metavib, folder):
    (folder / "photo" / "cat" / "bad.png").write_bytes(b"")
    status, out, _ = metavib("data", folder, "--json")
    assert status == 2
    assert json.loads(out)["can_train"] is False


def test_a_missing_folder_is_one_line(refused):
    assert "no/such/place" in refused("data", "no/such/place")


def test_looking_changes_nothing(metavib, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    metavib("data", folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
