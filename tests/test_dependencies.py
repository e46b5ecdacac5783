"""Dependencies: the constraints cover them, and what is installed is what `pyproject.toml` asks for."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from constraints import NOT_NEEDED, PLATFORMS, normal, pinned
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked_for() -> list[Requirement]:
    """Everything that `pyproject.toml` names, of all extras, but metavib itself."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [own for texts in lists for own in map(Requirement, texts) if own.name != "metavib"]


def constraints() -> dict[str, str]:
    """The pins by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def needed(name: str, seen: set[str]) -> Iterator[str]:
    """What a package that is installed needs here, and what that needs, and so on."""
    for text in metadata.requires(name) or ():
        own = Requirement(text)
        other = normal(own.name)
        if other not in seen and (own.marker is None or own.marker.evaluate({"extra": ""})):
            seen.add(other)
            yield other
            yield from needed(other, seen)


@pytest.mark.parametrize("own", asked_for(), ids=str)
def test_every_dependency_is_pinned_to_a_version_that_is_allowed(own: Requirement) -> None:
    assert constraints()[normal(own.name)] in own.specifier


def test_what_dependencies_need_is_pinned_too() -> None:
    found: set[str] = set()
    for own in asked_for():
        if own.marker is None or own.marker.evaluate():
            found |= {normal(own.name), *needed(own.name, {normal(own.name)})}
    lacking = {name for name in found if not PLATFORMS.fullmatch(name)} - NOT_NEEDED - constraints().keys()
    assert not lacking


@pytest.mark.parametrize("own", asked_for(), ids=str)
def test_what_is_installed_is_what_is_asked_for(own: Requirement) -> None:
    if own.marker is not None and not own.marker.evaluate():
        pytest.skip(f"{own.name} is not for this platform")
    assert metadata.version(own.name) in own.specifier


def test_the_constraints_hold_on_any_platform_and_name_no_place() -> None:
    for name, version in constraints().items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert Version(version).local is None
        assert not PLATFORMS.fullmatch(name)
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|@|--|/", text.replace("--constraint", ""))


def test_the_command_that_makes_them_gives_the_same_form() -> None:
    assert pinned().keys() & constraints().keys() >= {
        normal(own.name) for own in asked_for() if not own.marker
    }


def test_install_uses_them() -> None:
    assert "--constraint constraints.txt" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(("target", "installed"), [("demo", ["."]), ("install", [".", "'.[dev]'"])])
def test_the_demo_installs_the_core_alone(target: str, installed: list[str]) -> None:
    command = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), target]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.findall(r"--editable (\S+)", done.stdout) == installed


def test_the_release_audits_the_versions_and_lists_them_with_the_wheel() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    yaml = pytest.importorskip("ruamel.yaml")
    steps = yaml.YAML(typ="safe").load(workflow)["jobs"]["release"]["steps"]
    commands = " ".join(step.get("run", "") for step in steps)
    order = ["make check", "python -m build", "pip-audit", "cyclonedx-py environment", "sha256sum"]
    places = [commands.index(word) for word in order]
    assert places == sorted(places)
    assert "constraints.txt" in commands
