"""`metavib data`: what is there, what is wrong, and whether training could start."""

import json
import shutil

from PIL import Image


def test_domains_and_classes_are_counted(metavib, folder):
    (folder / "photo" / "dog" / "3.png").unlink()
    status, out, err = metavib("data", folder)
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["class"] == ["art", "cartoon", "photo", "sketch", "all"]
    assert rows["cat"] == ["4", "4", "4", "4", "16"]
    assert rows["dog"] == ["4", "4", "3", "4", "15"]
    assert rows["all"] == ["8", "8", "7", "8", "31"]
    assert "training can start" in out


def test_every_problem_is_named_and_an_error_is_status_2(metavib, folder):
    (folder / "photo" / "cat" / "bad.png").write_bytes(b"no image")
    shutil.copy(folder / "art" / "cat" / "0.png", folder / "sketch" / "dog" / "copy.png")
    status, out, err = metavib("data", folder)
    assert status == 2
    assert "error: photo/cat/bad.png" in out
    assert "art/cat/0.png = sketch/dog/copy.png" in out
    # Where stdout goes to a file, stderr still says why.
    assert err.splitlines()[-1].endswith(
        "training cannot start: fix or remove these files, or leave them out with --skip-bad."
    )


def test_too_few_domains_to_hold_one_out_are_named(metavib, make_folder, tmp_path):
    status, out, _ = metavib("data", make_folder(tmp_path / "few", domains="photo sketch"))
    assert status == 0
    assert "warning: only 2 domain(s)" in out


def test_odd_folders_are_warned_of_and_left_out(metavib, folder):
    (folder / "photo" / "unicorn").mkdir()
    (folder / "all").symlink_to(folder)
    (folder / "photo" / "up").symlink_to("..")
    status, out, _ = metavib("data", folder)
    assert status == 0
    assert "warning: class folder photo/unicorn holds no image: the class is missing there" in out
    assert f"warning: {folder / 'all'} is a link to a folder that it lies in: it is passed over" in out
    assert f"warning: {folder / 'photo' / 'up'} is a link to a folder that it lies in" in out
    assert out.splitlines()[1].split() == ["class", "art", "cartoon", "photo", "sketch", "all"]


def test_a_name_with_a_line_break_is_one_line(metavib, folder):
    (folder / "photo" / "cat" / "0.png").rename(folder / "photo" / "cat" / "new\nline\x1b[2J.png")
    (folder / "photo" / "cat" / "bad\n.png").write_bytes(b"no image")
    status, out, _ = metavib("data", folder)
    assert status == 2
    assert "error: photo/cat/bad\\n.png: is not" in out
    assert "\x1b" not in out
    assert metavib("data", folder, "--json").status == 2


def test_a_folder_with_a_table_is_told_to_name_it(refused, tmp_path):
    (tmp_path / "labels.csv").write_text("path,label,domain\n")
    assert f"give that file: {tmp_path / 'labels.csv'}" in refused("data", tmp_path)


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
