"""The command that goes on: every flag that was given is in it, and is read again as it was."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from typing import Any

import pytest

from metavib.interfaces.cli.commands import COMMANDS
from metavib.interfaces.cli.flags import share_of
from metavib.interfaces.cli.parsing import parsers, resume_command
from metavib.interfaces.cli.training.one_run import RECORDED
from metavib.training.experiment import Experiment

FLAGS = [
    (name, action)
    for name, parser in parsers()[1].items()
    for action in parser._actions
    if action.dest != "help"
]
# Of flags that exclude one another, all but the first.
SECOND_CHOICES = {
    (name, action.dest)
    for name, parser in parsers()[1].items()
    for group in parser._mutually_exclusive_groups
    for action in group._group_actions[1:]
}


def values_for(action: argparse.Action) -> list[list[str]]:
    """Words for a flag, none of which is its default; several ways where there are."""
    numbers = {int: ["7", "0", "-3"], float: ["0.125", "1e-07"], share_of: ["0.125", "5%"]}
    texts = (
        numbers.get(action.type, ["a", "a b's", "-x", "A,B"]) if not action.choices else list(action.choices)
    )
    if not action.option_strings:
        return [["a b's", "c"]] if action.nargs == "+" else [["a b's"]]
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [[flag]]
    if action.nargs == "+":
        return [[flag, "a b's"], [flag, "a", "b"]]
    ways = [[f"{flag}={text}"] for text in texts if text != str(action.default)]
    if action.nargs == "?":
        ways.append([flag])
    if isinstance(action, argparse._AppendAction):
        ways.append([f"{flag}={text}" for text in texts])
    return ways


def required(name: str, but: argparse.Action) -> list[str]:
    """Words for the arguments that a command cannot do without."""
    return [
        f"of-{a.dest}" for n, a in FLAGS if n == name and not a.option_strings and a.required and a is not but
    ]


def parsed(words: list[str]) -> dict[str, Any]:
    return vars(parsers()[0].parse_args(words))


def words_of(command: str) -> list[str]:
    program, *words = shlex.split(command)
    assert program == "metavib"
    return words


@pytest.mark.parametrize(("name", "action"), FLAGS, ids=lambda part: getattr(part, "dest", part))
def test_every_flag_of_every_command_survives_but_secrets(name: str, action: argparse.Action) -> None:
    for words in values_for(action):
        given = argparse.Namespace(**parsed([name, *required(name, action), *words]))
        again = parsed(words_of(resume_command(given)))
        if action.dest == "token":
            assert again.pop("token") is None
            assert vars(given).pop("token") is not None
        assert again == vars(given)


@pytest.mark.parametrize("name", COMMANDS)
def test_all_flags_of_a_command_survive_together(name: str) -> None:
    left_out = {(name, "token"), *SECOND_CHOICES}
    actions = [action for n, action in FLAGS if n == name and (n, action.dest) not in left_out]
    actions.sort(key=lambda action: bool(action.option_strings))
    words = [word for action in actions for word in values_for(action)[0]]
    given = parsed([name, *words])
    assert parsed(words_of(resume_command(argparse.Namespace(**given)))) == given
    assert all(given[action.dest] != action.default for action in actions)


def test_what_is_at_its_default_is_not_said() -> None:
    given = argparse.Namespace(**parsed(["train", "pacs", "--target", "photo", "--checkpoint-seconds", "30"]))
    assert resume_command(given) == "metavib train pacs --target photo"


def test_a_value_may_be_changed_and_what_is_recorded_is_left_out() -> None:
    words = [
        "train",
        "pacs",
        "--target",
        "photo",
        "--set",
        "beta=1",
        "--memory",
        "2GiB",
        "--checkpoint-seconds",
        "5",
    ]
    command = resume_command(argparse.Namespace(**parsed(words)), recorded=RECORDED, out="runs/a b")
    assert command == "metavib train --out 'runs/a b' --checkpoint-seconds 5.0 --memory 2GiB"


def test_another_command_gets_its_own_flags_as_they_were_given() -> None:
    words = [
        "train",
        "pacs",
        "--target",
        "photo",
        "--calibrate",
        "whole",
        "--data",
        "my data",
        "--device",
        "cpu",
    ]
    words += ["--memory", "2GiB", "--threads", "2", "--checkpoint-seconds", "5", "--skip-bad", "--steps", "7"]
    given = argparse.Namespace(**parsed(words))
    command = resume_command(given, command="calibrate", run="runs/a b", folds="whole")
    assert command == (
        "metavib calibrate 'runs/a b' --folds whole --skip-bad --checkpoint-seconds 5.0 --data 'my data' "
        "--memory 2GiB --device cpu --threads 2"
    )


def test_of_a_single_run_only_the_experiment_is_left_to_its_directory() -> None:
    """A flag that does not decide the experiment must not be named here: nobody else keeps it."""
    fields = {field.name for field in dataclasses.fields(Experiment)}
    settings = {"steps", "freeze", "set", "record_information", "select", "average", "config"}
    assert set(RECORDED) <= fields | settings


def test_torchrun_is_in_the_command_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    given = argparse.Namespace(**parsed(["train", "pacs"]))
    for variable, value in (("TORCHELASTIC_RUN_ID", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(variable, value)
    assert resume_command(given) == "torchrun --nproc-per-node 2 -m metavib train pacs"
