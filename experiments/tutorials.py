"""`make tutorials`: run the notebooks of docs/tutorials, and keep what they show in them.

    python experiments/tutorials.py

Each runs in an empty folder of its own, on one thread. Progress is not kept. A cell that fails, fails the command,
and the notebook stays as it was.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
PROGRESS = re.compile(r"\r|\d+/\d+\s*$")  # a line of a bar
SECONDS = 1200  # of one cell, against hangs alone
# Of a kernel: the checkout, the command `metavib` of this environment, one thread, and no network.
PATH = {"PYTHONPATH": str(ROOT / "src"), "PATH": str(Path(sys.executable).parent)}
QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}


def executed(path: Path, folder: Path) -> Any:
    """The notebook, run from its first cell to its last in this folder. A cell that fails is an error."""
    notebook = nbformat.read(path, as_version=4)
    around = {name: os.pathsep.join([own, os.environ.get(name, "")]) for name, own in PATH.items()}
    environment = os.environ | around | QUIET | {"METAVIB_CACHE": str(folder / ".cache")}
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=SECONDS,
        startup_timeout=SECONDS,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return notebook


def tidied(notebook: Any) -> Any:
    """The notebook with what is worth keeping: no progress, no times, no places of this machine."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = _joined([one for one in map(_tidied_output, cell.outputs) if one is not None])
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """What was printed in pieces, in one."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def _tidied_output(output: Any) -> Any:
    if output.output_type == "stream":
        if output.name == "stderr":
            return None
        output.text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.text).replace("\r\n", "\n")
        output.text = "\n".join(line for line in output.text.split("\n") if not PROGRESS.search(line))
        return output if output.text.strip() else None
    output.metadata = {}
    if "execution_count" in output:
        output.execution_count = None
    if "image/png" in output.data:
        output.data = {"image/png": output.data["image/png"]}
    return output


def main() -> None:
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            notebook = tidied(executed(path, Path(folder)))
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()
