"""What a user can get wrong: one line that says what, status 2, and nothing half-written."""

import io
import json
import math
import os
import re
import struct
import zlib
from contextlib import redirect_stderr

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image

from metavib.interfaces.cli.main import main


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


# --- the dataset ------------------------------------------------------------------------------------------


def test_a_folder_that_is_missing_is_named(refused, training, out):
    assert "no/such/folder" in refused(*training(data="no/such/folder"))
    assert not out.exists()


def test_a_file_in_place_of_the_folder_is_named(refused, training, out, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt" in refused(*training(data=tmp_path / "notes.txt"))
    assert not out.exists()


def test_an_empty_folder_is_told_what_belongs_there(refused, training, out, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "<domain>/<class>" in refused(*training(data=tmp_path / "empty"))
    assert not out.exists()


@pytest.mark.parametrize("domains", ["sketch", "photo sketch"])
def test_fewer_than_two_sources_are_not_enough(refused, training, make_folder, out, tmp_path, domains):
    line = refused(*training(data=make_folder(tmp_path / "few", domains=domains)))
    assert "at least 2 source domains" in line
    assert not out.exists()


def test_an_unknown_target_lists_those_that_exist(refused, training, out):
    line = refused(*training("--target", "sketsch"))
    assert "did you mean 'sketch'" in line
    assert "art, cartoon, photo, sketch" in line
    assert not out.exists()


def test_a_missing_target_is_asked_for(refused, folder, out):
    complaint = refused("train", folder, "--out", out)
    assert "no --target is given" in complaint
    assert all(domain.name in complaint for domain in folder.iterdir())
    assert not out.exists()


def test_a_class_that_only_the_target_has_is_named(refused, training, folder, out):
    (folder / "sketch" / "cat").rename(folder / "sketch" / "unicorn")
    assert "unicorn" in refused(*training())
    assert not out.exists()


def test_a_dataset_name_that_is_nearly_right_is_suggested(refused, training):
    assert "did you mean 'rotated-digits'" in refused(*training(data="rotated-digit"))


def test_a_path_that_is_too_long_for_the_file_system(refused, training, tmp_path):
    assert "too long" in refused(*training(data="a" * 300))
    assert "too long" in refused(*training(out=tmp_path / ("a" * 300)))


# --- bad image files --------------------------------------------------------------------------------------


def png(width, height, rows):
    """A PNG of one bit a pixel, without ever holding its pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    compressor = zlib.compressobj(1)
    row = bytes(1 + (width + 7) // 8)
    packed = b"".join([compressor.compress(row) for _ in range(rows)] + [compressor.flush()])
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def corrupt(good):
    middle = len(good) // 2
    return good[:middle] + bytes(byte ^ 0xFF for byte in good[middle : middle + 40]) + good[middle + 40 :]


BAD_FILES = {
    "corrupt.png": (corrupt, "damaged"),
    "truncated.png": (lambda good: good[: len(good) // 2], "truncated"),
    "empty.png": (lambda good: b"", "empty"),
    "huge.png": (lambda good: png(30_000, 30_000, 30_000), "30,000 x 30,000"),
    "text.jpg": (lambda good: b"these are no pixels", "not a JPEG"),
}


@pytest.fixture(params=BAD_FILES)
def bad_file(request, folder):
    """A bad file among the images of a source domain: its name in the dataset, and what is wrong with it."""
    make, reason = BAD_FILES[request.param]
    good = (folder / "photo" / "cat" / "0.png").read_bytes()
    (folder / "photo" / "cat" / request.param).write_bytes(make(good))
    return f"photo/cat/{request.param}", reason


def test_a_bad_file_is_named_and_can_be_left_out(metavib, refused, training, out, bad_file):
    name, reason = bad_file
    line = refused(*training())
    assert name in line
    assert reason in line
    assert "--skip-bad" in line
    assert not out.exists()

    status, _, err = metavib(*training("--skip-bad"))
    assert status == 0
    assert f"left out {name}" in err
    skipped = json.loads((out / "results.json").read_text())["data"]["skipped_files"]
    assert [entry.partition(":")[0] for entry in skipped] == [name]


def test_a_bad_target_file_is_noticed_at_the_end_and_costs_no_training(
    metavib, training, folder, out, monkeypatch
):
    bad = folder / "sketch" / "cat" / "0.png"
    good = bad.read_bytes()
    bad.write_bytes(good[:100])
    status, _, err = metavib(*training())
    assert status == 2
    assert "sketch/cat/0.png" in err.splitlines()[-1]
    assert not (out / "results.json").exists()
    log = (out / "metrics.jsonl").read_text()
    assert json.loads(log.splitlines()[-1])["step"] == 3

    bad.write_bytes(good)
    monkeypatch.setattr("metavib.training.optimizer.Optimizer.step", None)  # training would now break
    assert metavib(*training()).status == 0
    assert (out / "metrics.jsonl").read_text() == log
    assert json.loads((out / "results.json").read_text())["unseen"]["images"] == 8


def test_a_source_domain_left_without_training_images_is_named(refused, training, folder, out):
    for part in ("train", "crossval"):
        (folder / "photo" / part).mkdir()
    (folder / "photo" / "dog").rename(folder / "photo" / "crossval" / "dog")
    (folder / "photo" / "cat").rename(folder / "photo" / "train" / "cat")
    for path in (folder / "photo" / "train" / "cat").iterdir():
        path.write_bytes(b"bad")
    line = refused(*training("--skip-bad"))
    assert "photo has no training image" in line
    assert not out.exists()


def test_images_of_any_size_and_mode_simply_work(metavib, training, folder, out):
    places = iter(sorted((folder / "photo").rglob("*.png")))
    for mode in ("1", "L", "LA", "P", "RGBA", "RGB"):
        Image.new(mode, (17, 40), 1).save(next(places))
    place = next(places)
    Image.new("CMYK", (33, 9), (9, 90, 0, 3)).save(place.with_suffix(".jpg"))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (300, 1), (200, 10, 10)).save(place.with_suffix(".jpeg"), exif=exif)
    assert metavib(*training()).status == 0
    data = json.loads((out / "results.json").read_text())["data"]
    assert data["train_images"] + data["validation_images"] == 26
    assert data["skipped_files"] == []


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "suggestion"),
    [
        (("--algorithm", "metavid"), "metavib"),
        (("--backbone", "digit"), "digits"),
        (("--preset", "papre"), "paper"),
        (("--set", "learnin_rate=1"), "learning_rate"),
        (("--set", "training.learnin_rate=1"), "learning_rate"),
        (("--stepz", "3"), "--steps"),
        (("--protocol", "foldr"), "folder"),
        (("--select", "leave-one-out"), "leave-one-domain-out"),
        (("--average", "swat"), "swad"),
        (("--without", "foto"), "photo"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(refused, training, out, flags, suggestion):
    assert f"did you mean {suggestion!r}" in refused(*training(*flags))
    assert not out.exists()


def test_a_setting_of_another_algorithm_is_unknown(refused, folder, out):
    line = refused(
        "train", folder, "--target", "sketch", "--algorithm", "erm", "--set", "beta=1", "--out", out
    )
    assert "unknown setting 'beta'" in line
    assert not out.exists()


def test_an_unknown_command_is_suggested_the_nearest(refused):
    assert "did you mean 'train'" in refused("trian")


def test_an_unknown_flag_without_a_command_is_refused(refused):
    assert "--bogus" in refused("--bogus")


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--steps", "0"), "steps"),
        (("--steps", "many"), "--steps"),
        (("--seed", "-1"), "seed"),
        (("--seed", "1.5"), "--seed"),
        (("--seed", str(2**63)), "seed"),
        (("--set", "beta"), "NAME=VALUE"),
        (("--set", "=3"), "NAME=VALUE"),
        (("--set", "beta="), "beta"),
        (("--set", "schedule=linear"), "cosine, constant"),
        (("--set", "class_balanced=maybe"), "true or false"),
        (("--checkpoint-seconds", "nan"), "--checkpoint-seconds"),
        (("--checkpoint-seconds", "-1"), "--checkpoint-seconds"),
        (("--device", "gpu"), "auto, cpu, cuda or mps"),
        (("--device", "meta"), "auto, cpu, cuda or mps"),
        (("--weights", "no/such.safetensors"), "no/such.safetensors"),
        (("--set", "images_per_domain=1"), "images_per_domain=2"),  # there are two classes
        (("--set", "validation_share=0"), "selection=last"),
        (("--set", "precision=bfloat16", "--device", "cpu"), "precision=float32"),
        (("--set", "latent_width=10000000000"), "latent_width"),
        (("--set", "latent_draws=1,0"), "latent_draws"),  # two runs, of which one will not do
        (("--set", "steps=3,many"), "steps"),
        (("--set", "patience=-1"), "patience"),
        (("--set", "initialisation=zeros"), "network, torch"),
        (("--set", "feature_size=-1"), "feature_size"),
        (
            ("--select", "nonsense"),
            "highest-validation, last, leave-one-domain-out, oracle, source-validation",
        ),
        (("--set", "selection=leave-one-domain-out"), "source-validation, highest-validation, last, oracle"),
        (("--average", "nonsense"), "ema, none, sma, swad"),
        (("--average", "ema,swad"), "unknown average 'ema,swad'"),
        (("--set", "average_decay=1"), "average_decay"),
        (("--average", "swad", "--select", "oracle"), "swad chooses its steps by source validation"),
        (("--average", "swad", "--set", "validation_share=0"), "--average ema"),
        (("--average", "swad", "--select", "last", "--set", "validation_share=0"), "raise validation_share"),
        (("--without", "sketch"), "'sketch' cannot be the target and left out altogether"),
        (("--without", "art,photo"), "at least 2 source domains"),
    ],
)
def test_a_value_that_will_not_do_is_named(refused, training, out, flags, named):
    assert named in refused(*training(*flags))
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_without_cuda_says_what_to_do(refused, training, out):
    assert "--device cpu" in refused(*training("--device", "cuda"))
    assert not out.exists()


def is_number(text, *, whole, low, high):
    """Whether a text is what a setting takes, said in another way than the settings say it."""
    pattern = (
        r"[+-]?\d+(_\d+)*" if whole else r"[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)([eE][+-]?\d+)?"
    )
    text = text.strip()
    return re.fullmatch(pattern, text) is not None and low <= float(text) <= high


NUMBERS = {
    "steps": {"whole": True, "low": 1, "high": math.inf},
    "latent_draws": {"whole": True, "low": 1, "high": math.inf},
    "beta": {"whole": False, "low": 0, "high": 1.8e308},
    "learning_rate": {"whole": False, "low": 5e-324, "high": 1.8e308},
    "flip": {"whole": False, "low": 0, "high": 1},
}
TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "nan", "-nan", "inf", "-inf", "Infinity", "1e999", "0x10", "1'5", "½", "1e", "None"]
    ),
    st.floats(max_value=-1e-300).map(repr),
    st.integers(max_value=-1).map(str),
    st.floats(min_value=1.001, allow_infinity=False).map(repr),
    st.text(st.characters(codec="utf-8", exclude_characters=","), max_size=20),  # a comma makes a grid
)


@pytest.mark.parametrize("name", NUMBERS)
@hypothesis_settings(max_examples=60, deadline=None)
@given(value=TEXTS)
def test_whatever_is_no_number_in_the_range_is_refused_in_one_line(name, value):
    if is_number(value, **NUMBERS[name]):
        return
    said = io.StringIO()
    with redirect_stderr(said):
        status = main(
            ["train", "/no/such/folder", "--target", "x", "--seed", "1", "--set", f"{name}={value}"]
        )
    assert status == 2
    assert len(said.getvalue().splitlines()) == 1
    assert name in said.getvalue()


# --- where the run goes -----------------------------------------------------------------------------------


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_directory_with_another_experiment_is_left_alone(refused, training, finished):
    before = contents(finished.run)
    line = refused(*finished.command, "--set", "beta=0.5", "--seed", "7")
    assert "method.beta 0.001 against 0.5" in line
    assert "seed 1 against 7" in line
    assert contents(finished.run) == before


def test_a_file_in_place_of_the_directory_is_left_alone(refused, training, out):
    out.write_text("mine")
    assert "not a run directory" in refused(*training())
    assert out.read_text() == "mine"


def test_a_folder_with_other_things_is_left_alone(refused, training, out):
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    assert "not a run directory" in refused(*training())
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_a_path_below_a_file_cannot_be_written(refused, training, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "--out" in refused(*training(out=tmp_path / "file" / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written(refused, training, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o500)
    assert "permissions" in refused(*training(out=tmp_path / "mine" / "run"))


def test_images_that_changed_since_the_run_began_are_noticed(refused, interrupted, training, folder):
    interrupted(*training(), after=1)
    (folder / "photo" / "cat" / "0.png").rename(folder / "photo" / "cat" / "9.png")
    assert "images changed" in refused(*training())


# --- configuration files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("target: sketch\nseed: [1\n", "line 3"),
        ("target: sketch\ntarget: photo\n", "duplicate key"),
        ("targt: sketch\n", "did you mean 'target'"),
        ("training: {stepz: 3}\n", "did you mean 'steps'"),
        ("training: 3\n", "training must hold settings"),
        ("training: {steps: three}\n", "steps must be a whole number from 1, not 'three'"),
        ("training: {steps: [1, 2]}\n", "steps must be a whole number from 1, not [1, 2]"),
        ("training: {steps: true}\n", "steps must be"),
        ("seed: .inf\n", "seed must be"),
        ("seed: 1.0\n", "seed must be a whole number from 0 to 2^63 - 1, not 1.0"),
        ("- a\n- list\n", "names and values"),
        ("1: 2\n", "names and values"),
        ("just words\n", "names and values"),
        ("\xff: \x00\n", "not valid YAML"),
    ],
)
def test_a_bad_configuration_says_what_and_where(refused, folder, out, tmp_path, text, named):
    (tmp_path / "bad.yaml").write_text(text)
    command = ["train", folder, "--target", "sketch", "--config", tmp_path / "bad.yaml", "--out", out]
    assert named in refused(*command)
    assert not out.exists()


def test_a_missing_configuration_is_named(refused, folder, out):
    assert "nowhere.yaml" in refused("train", folder, "--config", "nowhere.yaml", "--out", out)


def test_bad_json_says_where(refused, folder, out, tmp_path):
    (tmp_path / "bad.json").write_text('{"target": "sketch",\n}')
    assert "line 2" in refused("train", folder, "--config", tmp_path / "bad.json", "--out", out)


def test_a_yaml_tag_runs_nothing(refused, folder, out, tmp_path):
    marker = tmp_path / "executed"
    (tmp_path / "evil.yaml").write_text(f'target: !!python/object/apply:os.system ["touch {marker}"]\n')
    assert "line 1" in refused("train", folder, "--config", tmp_path / "evil.yaml", "--out", out)
    assert not marker.exists()


# --- damaged files of a run -------------------------------------------------------------------------------


def flip_a_bit(path, share=0.5):
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_foreign(path):
    path.write_bytes(b"PK\x03\x04 something else")


DAMAGES = [flip_a_bit, truncate, make_foreign, os.remove]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        *((damage, "safetensors") for damage in DAMAGES),
        *((damage, "json") for damage in DAMAGES if damage is not os.remove),  # it would not count at all
    ],
)
def test_a_run_whose_only_checkpoint_is_damaged_is_not_started_again(
    refused_later, interrupted, training, out, damage, kind
):
    interrupted(*training(), after=2)
    damage(out / "checkpoints" / f"00000002.{kind}")
    before = contents(out / "checkpoints")
    line = refused_later(*training())
    assert "checkpoint of step 2" in line
    assert "Remove that folder" in line
    assert contents(out / "checkpoints") == before


def test_a_checkpoint_of_another_run_is_not_used(refused_later, interrupted, training, out, tmp_path):
    interrupted(*training("--seed", "2", out=tmp_path / "other"), after=2)
    interrupted(*training(), after=1)
    for path in (out / "checkpoints").iterdir():
        path.unlink()
    for path in (tmp_path / "other" / "checkpoints").iterdir():
        path.rename(out / "checkpoints" / path.name)
    assert "belongs to another experiment" in refused_later(*training())


@pytest.fixture
def refused_later(metavib):
    """Calls a command that begins, and then must end with status 2 and a line that is the last on stderr."""

    def call(*arguments):
        status, out, err = metavib(*arguments)
        assert (status, out) == (2, ""), err
        assert "Traceback" not in err
        assert [line.startswith("metavib: ") for line in err.splitlines()].count(True) == 1
        return err.splitlines()[-1]

    return call


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_answers_nothing(refused, finished_copy, damage, name):
    damage(finished_copy.run / "model" / name)
    image = finished_copy.folder / "photo" / "cat" / "0.png"
    assert name in refused("predict", finished_copy.run, image)
    assert name in refused("evaluate", finished_copy.run)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"experiment": {}}', '{"experiment": 3, "data": {}}'])
def test_a_damaged_experiment_is_named(refused, finished_copy, text):
    (finished_copy.run / "experiment.json").write_text(text)
    refused("evaluate", finished_copy.run)
    refused(*finished_copy.command, "--out", finished_copy.run)
