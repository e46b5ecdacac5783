from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from metavib.core.config_file import read_config, words_from
from metavib.core.errors import UserError
from metavib.interfaces.cli.parsing import parsers
from metavib.training.experiment import Experiment


def written(folder: Path, text: str | bytes, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_yaml_is_read_by_version_1_2(tmp_path: Path) -> None:
    text = "target: no\nbackbone: on\nprotocol: y\nseed: 017\ntraining: {steps: 5, learning_rate: 1e-3}\n"
    assert read_config(written(tmp_path, text)) == {
        "target": "no",  # a class of Norwegian images
        "backbone": "on",
        "protocol": "y",
        "seed": 17,
        "training": {"steps": 5, "learning_rate": 0.001},
    }


def test_true_and_null_keep_their_meaning(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "a: true\nb: null\nc: 'true'\n")) == {
        "a": True,
        "b": None,
        "c": "true",
    }


def test_json_is_read_by_the_suffix(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, '{"seed": 1}', "config.json")) == {"seed": 1}


def test_the_record_of_a_run_gives_its_experiment(tmp_path: Path) -> None:
    text = '{"format": 1, "experiment": {"seed": 1}, "identity": "x"}'
    assert read_config(written(tmp_path, text, "experiment.json")) == {"seed": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed: 1\nseed: 2\n", "not valid YAML, line 2: found duplicate key"),
        ("training: {steps: 1, steps: 2}\n", "duplicate key"),
        (
            "seed: !!python/object/apply:os.getpid []\n",
            "not valid YAML, line 1: could not determine a constructor",
        ),
        ("seed: [1\n", "not valid YAML, line 2"),
        ("a: b: c\n", "not valid YAML, line 1"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("\x07", "not valid YAML"),
        ("", "must hold names and values"),
        ("- 1\n- 2\n", "must hold names and values"),
        ("just words", "must hold names and values"),
        ("1: 2\n", "must hold names and values"),
    ],
)
def test_a_bad_file_is_one_line_with_what_is_wrong(text: str, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_config(path)
    assert str(error.value).startswith(f"the configuration {path} ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_no_tag_runs_code(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(UserError):
        read_config(written(tmp_path, f"seed: !!python/object/apply:os.mkdir ['{trace}']\n"))
    assert not trace.exists()


@pytest.mark.parametrize("text", ["{", "[1]", "{'seed': 1}", ""])
def test_bad_json_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(written(tmp_path, text, "config.json"))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path, written(tmp_path, b"\xff\xfe", "binary.yaml")):
        with pytest.raises(UserError, match="cannot read the configuration"):
            read_config(path)


def test_without_ruamel_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(UserError, match=r"JSON needs nothing.*pip install ruamel\.yaml"):
        read_config(written(tmp_path, "seed: 1\n"))
    assert read_config(written(tmp_path, '{"seed": 1}', "config.json")) == {"seed": 1}


def flags() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--skip-bad", action="store_true")
    parser.add_argument("--record-information", type=int, nargs="?", const=50)
    return {action.dest: action for action in parser._actions if action.dest != "help"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 5}, ["--steps=5"]),
        ({"steps": None}, []),
        ({"seeds": 3}, ["--seeds=3"]),
        ({"seeds": [90]}, ["--seeds=90,"]),
        ({"target": "all"}, ["--target=all"]),
        ({"target": [0, 75]}, ["--target=0,75"]),
        ({"target": 75}, []),  # the experiment reads it
        ({"skip_bad": True}, ["--skip-bad"]),
        ({"skip-bad": False}, []),
        ({"record_information": True}, ["--record-information=50"]),
        ({"set": {"beta": [0.1, 1], "flip": 0.5}}, ["--set=beta=0.1,1", "--set=flip=0.5"]),
        ({"set": ["beta=0.1", "flip=0.5"]}, ["--set=beta=0.1", "--set=flip=0.5"]),
        ({"training": {"steps": 3}}, []),
    ],
    ids=str,
)
def test_flags_in_a_file_are_words_of_a_command_line(values: dict[str, Any], words: list[str]) -> None:
    assert words_from(Path("c.yaml"), values, flags(), ("target", "training")) == words


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"stepz": 5}, "did you mean 'steps'"),
        ({"steps": {"a": 1}}, "steps must be a value or a list of values"),
        ({"steps": []}, "steps must be a value or a list of values"),
        ({"skip_bad": "yes"}, "skip_bad must be true or false"),
    ],
    ids=str,
)
def test_a_flag_that_makes_no_sense_is_named(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        words_from(Path("c.yaml"), values, flags(), ("target",))


def test_every_flag_of_train_can_stand_in_a_file() -> None:
    parser, commands = parsers()
    own = {
        action.dest: action
        for action in commands["train"]._actions
        if action.option_strings and action.dest not in ("help", "config")
    }
    fields = [field.name for field in dataclasses.fields(Experiment)]
    for name, action in own.items():
        value: Any = {int: 3, float: 2.5}.get(action.type, "one")  # type: ignore[arg-type, call-overload]
        value = True if action.nargs == 0 else ["beta=1"] if name == "set" else value
        value = next(iter(action.choices)) if action.choices else value
        value = [value] if action.default == [] and name != "set" else value
        value = ["one, and", "two"] if action.nargs == "+" else value
        words = words_from(Path("c.yaml"), {name.replace("_", "-"): value}, own, fields)
        if words:
            assert getattr(parser.parse_args(["train", *words]), name) == value
        else:
            assert name in fields  # `experiment_from` takes it from the file
