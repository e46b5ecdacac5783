"""The wheel and the sdist: built, installed without extras into a clean environment, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK
from packaging.requirements import Requirement
from places import PATIENCE, ROOT

import metavib

pytestmark = pytest.mark.whole
pytest.importorskip("build")
pytest.importorskip("hatchling")


def called(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the checkout, and the wheel that is made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    called(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("metavib-*.whl")
    return found


def needed(name: str, seen: set[str] | None = None) -> Iterator[str]:
    """What a package needs here without extras, and what that needs, and so on."""
    seen = set() if seen is None else seen
    for text in metadata.requires(name) or ():
        own = Requirement(text)
        wanted = own.marker is None or own.marker.evaluate({"extra": ""})
        if wanted and own.name not in seen:
            seen.add(own.name)
            yield own.name
            yield from needed(own.name, seen=seen)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, and nothing else; what is installed here is linked to.

    Nothing is downloaded: torch alone has gigabytes.
    """
    folder = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    here = f"{sys.executable}", "-m", "pip", "--python", folder / "bin" / "python"
    called(*here, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("METADATA"))
        text = archive.read(name).decode()
    required = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in text.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    seen: set[str] = set()
    names = {own.name for own in required if own.marker is None or own.marker.evaluate({"extra": ""})}
    for name in list(names):
        names |= set(needed(name, seen=seen))
    for name in names:
        for file in metadata.files(name) or ():
            top = file.parts[0]
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (place / top).exists():
                (place / top).symlink_to(source)
    return folder


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the installed command, in an environment that knows nothing of the checkout."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "METAVIB"))}
    own |= {"METAVIB_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def call(*words: Any) -> subprocess.CompletedProcess[str]:
        return called(environment / "bin" / "metavib", *words, cwd=tmp_path, env=own)

    return call


def test_the_wheel_has_the_package_and_the_sdist_its_sources(dist: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    own = Path(metavib.__file__).parent
    for path in own.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"metavib/{path.relative_to(own)}" in names
    assert "metavib/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "results", "experiments"))]
    (sdist,) = dist.glob("metavib-*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "src/metavib/__init__.py"} <= set(inside)
    assert sdist.stat().st_size < 20e6


def test_without_extras_it_trains_and_predicts(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, environment: Path, tmp_path: Path
) -> None:
    first = run("--version").stdout.splitlines()[0]
    assert first == f"metavib {metavib.__version__}"
    run("train", folder, "--out", tmp_path / "run", *QUICK)
    image = next(folder.rglob("*.png"))
    answer = run("predict", tmp_path / "run", image, "--csv").stdout
    assert len(answer.splitlines()) == 2
    code = "import metavib, sys; print(metavib.__file__)"
    found = called(environment / "bin" / "python", "-I", "-c", code).stdout
    assert found.startswith(str(environment))


def test_without_extras_the_demo_goes_to_its_end(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    out = run("demo", "--steps", "2", "--targets", "75", "--out", tmp_path / "demo").stdout
    assert "Accuracy on the unseen angle" in out
    assert "<h1>metavib report</h1>" in (tmp_path / "demo" / "report.html").read_text()
    (command,) = (line.split() for line in out.splitlines() if line.startswith("  metavib predict"))
    assert len(run(*command[1:], "--csv").stdout.splitlines()) == 11  # ten digits


def test_an_extra_that_is_not_there_is_named(environment: Path, folder: Path, tmp_path: Path) -> None:
    command = [environment / "bin" / "metavib", "train", folder, "--out", tmp_path / "run", *QUICK]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for name in ("tensorboard", "mlflow", "wandb"):
        words = [str(word) for word in (*command, "--log", name)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=own, timeout=PATIENCE)
        assert done.returncode == 2
        line = f"metavib: --log {name} needs {name}; run: pip install 'metavib[{name}]'\n"
        assert done.stderr == line
    assert not (tmp_path / "run").exists()
