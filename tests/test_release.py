"""A release: its tag, and every place that names a version, say the same."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest
from places import ROOT

import metavib

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), (VERSION, 1), (f"v{VERSION}.1", 1)])
def test_a_release_with_another_tag_than_the_version_stops(tag: str, status: int) -> None:
    yaml = pytest.importorskip("ruamel.yaml")
    workflow = yaml.YAML(typ="safe").load((ROOT / ".github/workflows/release.yml").read_text())
    steps = workflow["jobs"]["release"]["steps"]
    (own,) = (step for step in steps if step.get("name") == "The tag names the version")
    assert own["if"] == "github.ref_type == 'tag'"
    assert steps.index(own) < min(n for n, step in enumerate(steps) if "make check" in step.get("run", ""))
    done = subprocess.run(
        ["bash", "-e", "-c", own["run"]],
        cwd=ROOT,
        env=os.environ | {"GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert status == 0 or f"pyproject.toml has {VERSION}" in done.stdout


def test_every_place_that_names_the_version_has_the_same() -> None:
    assert metavib.__version__ == VERSION
    assert re.search(r"^version: *(\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)[1] == VERSION
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == VERSION
    wheels = {
        name
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"metavib-([\d.]+)-py3", path.read_text())
    }
    assert wheels == {VERSION}
