"""`metavib predict`: answers that add up, in three forms."""

import contextlib
import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
from threading import Thread

import pytest
from places import PATIENCE

from metavib.core.json_record import checksum
from metavib.serving.predictor import BATCH


@pytest.fixture
def images(finished):
    return sorted(finished.folder.glob("sketch/*/*.png"))


@pytest.fixture
def predictions(metavib, finished):
    def predict(*arguments):
        status, out, _ = metavib("predict", finished.run, *arguments, "--json")
        assert status == 0
        return [json.loads(line) for line in out.splitlines()]

    return predict


@pytest.fixture
def listed(monkeypatch):
    """Puts these bytes on standard input."""

    def put(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.png"
    path.write_bytes(b"no image")
    return path


def test_a_digit_is_answered_without_torchvision_and_torch_s_compiler(finished, images):
    code = (
        "import sys\n"
        "from metavib.interfaces.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "heavy = {'torchvision', 'torch._dynamo', 'sympy', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else status)\n"
    )
    command = [sys.executable, "-c", code, "predict", str(finished.run), str(images[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert images[0].name in done.stdout


def test_the_table_has_a_line_for_each_file(metavib, finished, images):
    status, out, err = metavib("predict", finished.run, *images)
    assert (status, err) == (0, "")
    *lines, explanation = out.splitlines()
    assert lines[0].split() == ["file", "label", "probability", "entropy", "of", "the", "model", "unsure"]
    assert [line.split()[0] for line in lines[2:]] == [str(path) for path in images]
    assert all(line.split()[1] in ("cat", "dog") for line in lines[2:])
    assert all(line.split()[-1] in ("yes", "no") for line in lines[2:])
    assert f"{math.log(2):.3f} is no idea" in explanation
    assert "90%" in explanation


def test_a_long_table_keeps_the_columns_of_its_first_rows(metavib, finished, images):
    many = (images * BATCH)[: BATCH + 5]
    _, out, _ = metavib("predict", finished.run, *many)
    lines = out.splitlines()[:-1]
    assert len(lines) == 2 + len(many)
    assert len({len(line) for line in lines[2:]}) == 1


def test_the_table_shows_the_next_best_and_the_drawn_classifiers(metavib, finished, images):
    _, out, _ = metavib("predict", finished.run, images[0], "--top", 5, "--samples")
    assert out.splitlines()[0].split()[-3:] == ["next", "by", "classifier"]
    label, next_label = (out.splitlines()[2].split()[column] for column in (1, 6))
    assert {label, next_label} == {"cat", "dog"}


def test_probabilities_and_entropies_are_within_their_limits(predictions, images):
    for answer in predictions(*images):
        probabilities = answer["probabilities"]
        assert list(probabilities) == ["cat", "dog"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == max(probabilities, key=probabilities.get)
        assert answer["probability"] == max(probabilities.values())
        assert 0 <= answer["model_entropy"] <= answer["entropy"] + 1e-6
        assert answer["entropy"] <= math.log(2) + 1e-6


def test_csv_says_the_same_as_json(metavib, predictions, finished, images):
    _, out, _ = metavib("predict", finished.run, *images, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    for row, answer in zip(rows, predictions(*images), strict=True):
        assert row["file"] == answer["file"]
        assert row["label"] == answer["label"]
        assert float(row["entropy"]) == answer["entropy"]
        assert {name: float(row[name]) for name in ("cat", "dog")} == answer["probabilities"]


def test_the_same_seed_gives_the_same_answer_and_another_another(predictions, images):
    assert predictions(*images, "--seed", 3) == predictions(*images, "--seed", 3)
    assert predictions(*images, "--seed", 3) != predictions(*images, "--seed", 4)


def test_an_answer_does_not_depend_on_the_images_beside_it(predictions, images):
    together = predictions(*images)
    for path, answer in zip(images, together, strict=True):
        alone = predictions(path)[0]
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    assert [a["file"] for a in predictions(*reversed(images))] == [a["file"] for a in reversed(together)]


def test_a_folder_stands_for_the_images_in_it(predictions, finished, images):
    assert predictions(finished.folder / "sketch") == predictions(*images)


def test_the_model_directory_will_do(metavib, finished, images):
    _, of_run, _ = metavib("predict", finished.run, images[0], "--csv")
    _, of_model, _ = metavib("predict", finished.run / "model", images[0], "--csv")
    assert of_run == of_model


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]], ids=["table", "json", "csv"])
@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_file_that_cannot_be_read_is_named_and_passed_over(metavib, finished, images, bad, content, form):
    bad.unlink() if content is None else bad.write_bytes(content)
    status, out, err = metavib("predict", finished.run, images[0], bad, images[1], *form)
    assert status == 1
    assert f"metavib: {bad}: " in err
    assert "1 of 3 files could not be read" in err
    assert "Traceback" not in err
    _, without, _ = metavib("predict", finished.run, images[0], images[1], *form)
    assert out == without


def test_a_cell_of_csv_is_no_formula(metavib, finished_copy, images, tmp_path, monkeypatch):
    path = finished_copy.run / "model" / "config.json"
    record = json.loads(path.read_text())
    record["classes"] = ["=cmd()", "-1"]
    record.pop("check")
    path.write_text(json.dumps(record | {"check": checksum(record)}))
    monkeypatch.chdir(tmp_path)
    shutil.copy(images[0], "@evil.png")
    shutil.copy(images[0], "plain.png")
    _, out, _ = metavib("predict", finished_copy.run, "@evil.png", "plain.png", "--csv", "--samples")
    header, *rows = csv.reader(io.StringIO(out))
    assert header[6:] == ["'=cmd()", "-1", "'=cmd()@1", "'-1@1", "'=cmd()@2", "'-1@2"]
    assert [row[0] for row in rows] == ["'@evil.png", "plain.png"]
    assert {row[1] for row in rows} <= {"'=cmd()", "-1"}
    assert all(float(cell) >= -1e-6 for row in rows for cell in (*row[2:5], *row[6:]))


def test_where_no_file_can_be_read_there_is_no_answer(metavib, finished, bad):
    assert metavib("predict", finished.run, bad, bad)[:2] == (1, "")


def test_what_is_no_file_is_not_waited_for(metavib, finished):
    status, out, err = metavib("predict", finished.run, "/dev/zero")
    assert (status, out) == (1, "")
    assert "not a regular file" in err


def test_names_on_stdin_are_answered_like_names_that_are_given(metavib, predictions, images, listed):
    expected = predictions(*images)
    for content in (
        "\n".join(map(str, images)),
        "".join(f"{path}\r\n\n" for path in images),
        f"{images[0].parent}\n{images[-1].parent}\n",
    ):
        listed(content.encode())
        assert predictions("-") == expected
    listed("".join(f"{path}\0" for path in images).encode())
    assert predictions("-", "-0") == expected
    listed(b"")
    assert predictions("-") == []
    listed(str(images[1]).encode())
    assert [answer["file"] for answer in predictions(images[0], "-", images[2])] == [
        str(path) for path in images[:3]
    ]


def test_names_longer_than_what_is_read_at_a_time_are_whole(predictions, images, listed):
    many = (images * 300)[:1500]
    listed("\n".join(map(str, many)).encode())
    assert [answer["file"] for answer in predictions("-", "--mean")] == list(map(str, many))


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a\0b\0", "-0"), (b"x" * 300_000, "no file names")],
    ids=["NUL without -0", "endless"],
)
def test_what_is_no_list_of_names_is_refused(refused, finished, listed, content, words):
    listed(content)
    assert words in refused("predict", finished.run, "-")


def test_a_listed_folder_without_images_is_no_answer(predictions, listed, tmp_path):
    listed(str(tmp_path).encode())
    assert predictions("-") == []


def test_a_name_that_is_no_text_is_shown_and_kept(metavib, finished, images, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff\x1b[31m\n.png")
    shutil.copy(images[0], odd)
    status, out, _ = metavib("predict", finished.run, odd)
    assert status == 0
    assert "\\udcff\\x1b[31m\\n.png" in out
    assert "\x1b" not in out
    _, out, _ = metavib("predict", finished.run, odd, "--json")
    assert json.loads(out)["file"] == str(odd)
    assert metavib("predict", finished.run, odd, "--csv").status == 0


def test_the_best_few_come_first(predictions, metavib, finished, images):
    for answer, one, whole in zip(
        predictions(*images, "--top", 9), predictions(*images, "--top", 1), predictions(*images), strict=True
    ):
        assert answer["probabilities"] == whole["probabilities"]
        assert list(answer["probabilities"].values()) == sorted(whole["probabilities"].values(), reverse=True)
        assert one["probabilities"] == {whole["label"]: whole["probability"]}
    _, out, _ = metavib("predict", finished.run, images[0], "--csv", "--top", 2)
    row = next(csv.DictReader(io.StringIO(out)))
    assert row["label"] == row["label_1"] != row["label_2"]
    assert float(row["probability_1"]) + float(row["probability_2"]) == pytest.approx(1, abs=1e-5)


def test_samples_are_the_probabilities_under_each_drawn_classifier(predictions, metavib, finished, images):
    (answer,) = predictions(images[0], "--samples", "--sampled")
    assert len(answer["classifiers"]) == 2
    means = [sum(column) / 2 for column in zip(*answer["classifiers"], strict=True)]
    assert list(answer["probabilities"].values()) == pytest.approx(means, abs=1e-6)
    assert "classifiers" not in predictions(images[0])[0]
    _, out, _ = metavib("predict", finished.run, images[0], "--csv", "--samples")
    row = next(csv.DictReader(io.StringIO(out)))
    assert [[float(row[f"{label}@{draw}"]) for label in ("cat", "dog")] for draw in (1, 2)] == answer[
        "classifiers"
    ]


def test_at_the_mean_the_seed_does_not_matter(predictions, images):
    assert predictions(*images, "--mean") == predictions(*images, "--mean", "--seed", 7)
    assert predictions(*images, "--mean") != predictions(*images, "--sampled")


def test_the_seed_changes_neither_labels_nor_probabilities(predictions, images):
    def answers(*flags):
        return [(one["label"], one["probabilities"], one["unsure"]) for one in predictions(*images, *flags)]

    assert answers() == answers("--seed", 7) == answers("--mean")
    assert answers("--sampled") != answers("--sampled", "--seed", 7)


def test_the_coverage_decides_who_is_unsure(predictions, finished):
    def unsure(coverage):
        return [answer["unsure"] for answer in predictions(finished.folder, "--coverage", coverage)]

    few, many = unsure(1), unsure(0.01)
    assert sum(few) < sum(many)
    assert not any(one and not other for one, other in zip(few, many, strict=True))


def test_a_model_without_thresholds_says_so_once(metavib, finished_copy, images):
    path = finished_copy.run / "model" / "config.json"
    record = json.loads(path.read_text())
    del record["calibration"], record["check"]
    path.write_text(json.dumps(record | {"check": checksum(record)}))
    status, out, err = metavib("predict", finished_copy.run, *images, "--json")
    assert status == 0
    assert err.count("no thresholds") == 1
    assert {json.loads(line)["unsure"] for line in out.splitlines()} == {None}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--samples", "--mean"], "--mean"),
        (["--sampled", "--mean"], "--sampled"),
        (["--top", "0"], "--top 0"),
        (["--coverage", "1.5"], "coverage = 1.5"),
        (["--coverage", "0"], "coverage = 0"),
        (["--null"], "-0"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense_are_refused(refused, finished, images, flags, words):
    assert words in refused("predict", finished.run, images[0], *flags)


@pytest.mark.processes
def test_a_reader_who_leaves_ends_it_quietly(program, finished, images):
    names = "\n".join(map(str, images * 2000))
    predict = subprocess.Popen(
        [*program, "predict", str(finished.run), "-", "--json", "--mean"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    Thread(target=_feed, args=(predict.stdin, names.encode()), daemon=True).start()
    assert json.loads(predict.stdout.readline())["label"] in ("cat", "dog")
    predict.stdout.close()
    error = predict.stderr.read().decode()
    predict.stderr.close()
    assert (predict.wait(PATIENCE), error) == (0, "")


@pytest.mark.processes
@pytest.mark.skipif(os.name != "posix", reason="a terminal of our own")
def test_the_bar_of_a_terminal_leaves_the_answers_alone(program, finished, images):
    ours, theirs = os.openpty()
    predict = subprocess.Popen(
        [*program, "predict", str(finished.run), *map(str, images * BATCH), "--json", "--mean"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = []

    def watch():
        with contextlib.suppress(OSError):  # what Linux says where the other end is closed
            while text := os.read(ours, 4096):
                shown.append(text)

    watching = Thread(target=watch, daemon=True)
    watching.start()
    lines = predict.stdout.read().decode().splitlines()
    predict.stdout.close()
    assert predict.wait(PATIENCE) == 0
    watching.join(PATIENCE)
    os.close(ours)
    assert [json.loads(line)["file"] for line in lines] == list(map(str, images * BATCH))
    assert f"{len(lines)}/{len(lines)}" in b"".join(shown).decode()


def _feed(stream, content):
    with contextlib.suppress(BrokenPipeError):
        stream.write(content)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_folder_without_images_is_named(refused, finished, tmp_path):
    assert str(tmp_path) in refused("predict", finished.run, tmp_path)


def test_two_forms_at_once_are_refused(refused, finished, images):
    assert "--csv" in refused("predict", finished.run, images[0], "--csv")


def test_a_missing_model_is_named(refused, images, tmp_path):
    assert "nowhere" in refused("predict", tmp_path / "nowhere", images[0])
    assert "config.json" in refused("predict", tmp_path, images[0])


def test_no_file_at_all_is_refused(refused, finished):
    assert "FILE" in refused("predict", finished.run)
