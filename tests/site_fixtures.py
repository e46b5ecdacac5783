"""The documentation site, built once for the tests that look at it. A plugin: `conftest.py` names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; a warning of Sphinx fails whatever asks for it."""
    pytest.importorskip("sphinx", reason="no sphinx: pip install 'metavib[docs]'")
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    built = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return folder / "html"
