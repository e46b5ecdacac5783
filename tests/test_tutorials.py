"""The notebooks of docs/tutorials run from the first cell to the last, and show what they do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.whole
nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install nbformat nbclient ipykernel")
pytest.importorskip("ipykernel", reason="no ipykernel: pip install ipykernel")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries, about each other
    tutorials = pytest.importorskip("tutorials", reason="no nbclient: pip install nbclient")

NAMES = ["own-images", "own-method", "uncertainty"]
MOST_BYTES = 150_000  # of a notebook with what it shows


def texts(notebook: Any) -> str:
    """All that a notebook has printed."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in shown
    )


def kinds(notebook: Any) -> list[list[str]]:
    """What each cell shows: lines, a value, a picture."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [["picture" if "image/png" in one.get("data", {}) else "text" for one in c.outputs] for c in cells]


def test_there_are_three_and_they_are_small() -> None:
    assert [path.stem for path in tutorials.NOTEBOOKS] == NAMES
    for path in tutorials.NOTEBOOKS:
        assert path.stat().st_size < MOST_BYTES
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].source.startswith("# ")
        assert tutorials.tidied(notebook) == nbformat.read(path, as_version=4), "run: make tutorials"


def test_no_notebook_names_a_place_of_the_machine_that_made_it() -> None:
    for path in tutorials.NOTEBOOKS:
        shown = texts(nbformat.read(path, as_version=4))
        assert shown
        for word in ("/home/", "/tmp/", "/root/", str(Path.cwd()), "Traceback"):  # noqa: S108
            assert word not in shown


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_what_is_kept_in_it(name: str, tmp_path: Path) -> None:
    path = tutorials.ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's libraries
        notebook = tutorials.tidied(tutorials.executed(path, tmp_path))
    assert kinds(notebook) == kinds(nbformat.read(path, as_version=4)), "run: make tutorials"
    assert (tmp_path / "runs").is_dir()
    if name == "own-method":
        assert "the same as ERM: True" in texts(notebook)


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            tutorials.executed(tmp_path / "wrong.ipynb", tmp_path)


def test_the_method_has_40_lines() -> None:
    path = tutorials.ROOT / "docs" / "tutorials" / "own-method.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    (method,) = (cell.source for cell in cells if "class VREx" in cell.source)
    assert len([line for line in method.splitlines() if line.strip()]) <= 40
