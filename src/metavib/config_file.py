"""Settings from a YAML or JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metavib import untrusted
from metavib.errors import UserError


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


def _from_json(path: Path, text: str) -> Any:
    try:
        return untrusted.json_from(text)
    except ValueError as error:
        raise UserError(f"the configuration {path} is no valid JSON: {error}") from error


def _from_yaml(path: Path, text: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ModuleNotFoundError as error:
        raise UserError("YAML files need ruamel.yaml: pip install ruamel.yaml, or write JSON.") from error
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"the configuration {path} is no valid YAML{line}: {problem}") from error
