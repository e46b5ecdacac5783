"""The core is run with torch, torchvision, numpy, Pillow and safetensors alone, and nothing else to be found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import PATIENCE

pytestmark = pytest.mark.processes

CHILD = """
import importlib.metadata, sys
import torch, torchvision, numpy, PIL.Image, safetensors.torch

# What the five need themselves may be there; every other package is not.
def needs(name, seen):
    seen.add(name)
    for text in importlib.metadata.requires(name) or ():
        words, _, marker = text.partition(";")
        own = words.split("[")[0].strip()
        for sign in " <>=!~(": own = own.split(sign)[0]
        own = own.lower().replace("_", "-")
        if "extra" not in marker and own not in seen:
            try: importlib.metadata.version(own)
            except importlib.metadata.PackageNotFoundError: continue
            needs(own, seen)
    return seen
five = set()
for name in ("torch", "torchvision", "numpy", "pillow", "safetensors"): needs(name, five)
modules = importlib.metadata.packages_distributions()
hidden = {
    module for module, names in modules.items()
    if not {name.lower().replace("_", "-") for name in names} & (five | {"metavib", "setuptools"})
}
assert {"rich", "ruamel", "sklearn", "scipy", "matplotlib", "fastapi", "optuna", "jaxtyping"} <= hidden
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden: raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from metavib.interfaces.cli.main import main
for line in sys.stdin.read().splitlines():
    words = line.split("\\t")
    ended = main(words)
    print("###", words[0], ended, flush=True)
"""


def test_the_commands_of_the_core_run_with_five_packages(
    training: Callable[..., list[str]], folder: Path, tmp_path: Path
) -> None:
    run, grid = tmp_path / "run", tmp_path / "grid"
    image = next(folder.rglob("*.png"))
    one = [str(word) for word in training("--out", run)]
    many = [str(word) for word in training("--out", grid)]
    at = many.index("--seed")
    many[at : at + 2] = ["--seeds", "2"]
    calls = [
        ["data", str(folder)],
        one,
        one,  # finished already
        many,
        ["evaluate", str(run)],
        ["predict", str(run), str(image), "--csv"],
        ["predict", str(run), str(image), "--json"],
        ["describe", "metavib"],
        ["describe", str(run)],
    ]
    lines = "\n".join("\t".join(words) for words in calls)
    child = [sys.executable, "-c", CHILD]
    ended = subprocess.run(
        child, input=lines, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("###")] == [
        f"### {words[0]} 0" for words in calls
    ], ended.stderr
    assert (run / "results.json").is_file()
    assert len(list(grid.glob("*/results.json"))) == 2


def test_a_command_that_needs_more_says_what_to_install(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVIB_DATA", str(tmp_path))  # where PACS is, its table would be trained
    calls = [["demo"], ["reproduce", "pacs"], ["serve", str(tmp_path)]]
    lines = "\n".join("\t".join(words) for words in calls)
    child = [sys.executable, "-c", CHILD]
    ended = subprocess.run(
        child, input=lines, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("###")] == [
        f"### {words[0]} 2" for words in calls
    ], ended.stderr
