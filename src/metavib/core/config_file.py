"""Settings and flags from a YAML or JSON file."""

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from metavib.core import untrusted
from metavib.core.errors import UserError, require_installed, unknown_name


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in the file. YAML 1.2: `no` is a word and not false, a key stands once, no tags run code."""
    try:
        text = untrusted.read_text(path, untrusted.RECORD_BYTES)
    except (OSError, ValueError) as error:  # no UTF-8, or a name that no file can have
        raise UserError(f"cannot read the configuration {path}: {error}") from error
    value = _from_json(path, text) if path.suffix == ".json" else _from_yaml(path, text)
    if isinstance(value, dict) and isinstance(value.get("experiment"), dict):
        value = value["experiment"]  # the experiment.json of a run
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"the configuration {path} must hold names and values, such as 'target: sketch'.")
    return value


def words_from(
    path: Path, values: Mapping[str, Any], flags: Mapping[str, argparse.Action], kept: Collection[str]
) -> list[str]:
    """The flags in a configuration file, as words of a command line.

    `flags` has the command's own by their keys. What is in `kept` belongs to the experiment, and is read from the
    file there. A list stands for what a flag takes as A,B.
    """
    words: list[str] = []
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in flags:
            if name not in kept:
                raise unknown_name("key", key, {*flags, *kept})
        elif name in kept and not (name in ("target", "algorithm") and isinstance(value, str | list)):
            continue  # but for what a grid may name several of
        elif value is not None:
            words += _words(path, name, value, flags[name])
    return words


def _words(path: Path, name: str, value: Any, flag: argparse.Action) -> list[str]:
    option = flag.option_strings[-1]
    if flag.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise UserError(f"the configuration {path}: {name} must be true or false, not {value!r}.")
        return [option] if value else []
    if flag.nargs == "?" and isinstance(value, bool):  # a switch that takes a number too
        return [f"{option}={flag.const}"] if value else []
    if isinstance(value, Mapping) and name == "set":
        return [f"{option}={setting}={_text(path, name, own)}" for setting, own in value.items()]
    if flag.nargs == "+":  # several words, and not one with commas: paths may have them
        return [option, *(_text(path, name, own) for own in (value if isinstance(value, list) else [value]))]
    if isinstance(flag, argparse._AppendAction) and isinstance(value, list):
        return [f"{option}={_text(path, name, own)}" for own in value]
    return [f"{option}={_text(path, name, value)}"]


def _text(path: Path, name: str, value: Any) -> str:
    """A value as a flag takes it; a list of one is still a list."""
    parts = value if isinstance(value, list) else [value]
    if not parts or any(isinstance(part, list | Mapping) or part is None for part in parts):
        raise UserError(
            f"the configuration {path}: {name} must be a value or a list of values, not {value!r}."
        )
    text = ",".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
    return f"{text}," if name == "seeds" and isinstance(value, list) else text


def _from_json(path: Path, text: str) -> Any:
    try:
        return untrusted.json_from(text)
    except ValueError as error:
        raise UserError(f"the configuration {path} is not valid JSON: {error}") from error


def _from_yaml(path: Path, text: str) -> Any:
    require_installed(
        "ruamel.yaml", "YAML files need ruamel.yaml (JSON needs nothing)", package="ruamel.yaml"
    )
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"the configuration {path} is not valid YAML{line}: {problem}") from error
