"""The code of docs/python.md runs, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import sklearn

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", PAGE, flags=re.DOTALL)
CODE = [(code, printed) for code, printed in BLOCKS if "domainbed" not in code]
SCRIPTS = [(code, command) for code, command in BLOCKS if "domainbed" in code]
NUMBER = r"\d+\.\d+"

# A harness of our own that finds an algorithm by its name in the module and calls it as DomainBed does.
HARNESS = """
import sys
import torch
from domainbed import algorithms
name = sys.argv[sys.argv.index("--algorithm") + 1]
hparams = {"lr": 1e-3, "weight_decay": 0.0, "metavib_latent_width": 8}
algorithm = vars(algorithms)[name]((4,), 2, 2, hparams)
batch = torch.randn(6, 4), torch.tensor([0, 1] * 3)
steps = [algorithm.update([batch, batch], None) for _ in range(2)]
print(type(algorithm.algorithm.backbone.network).__name__, sorted(steps[0]), algorithm.predict(batch[0]).shape[1])
"""
NETWORKS = """
from torch import nn
class Featurizer(nn.Linear):
    def __init__(self, input_shape, hparams):
        super().__init__(input_shape[0], 5)
        self.n_outputs = 5
"""


def test_the_blocks_print_what_stands_below_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(CODE) == 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with sklearn.config_context():
        for code, printed in CODE:
            exec(compile(code, "docs/python.md", "exec"), names)  # noqa: S102
            found = capsys.readouterr().out
            assert re.sub(NUMBER, "#", found) == re.sub(NUMBER, "#", printed), found
            numbers = [[float(number) for number in re.findall(NUMBER, text)] for text in (found, printed)]
            assert numbers[0] == pytest.approx(numbers[1], abs=0.15), found  # machines round in their ways


def test_the_script_registers_the_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ((script, command),) = SCRIPTS
    (tmp_path / "domainbed" / "scripts").mkdir(parents=True)
    files = {
        "__init__": "",
        "algorithms": "",
        "networks": NETWORKS,
        "scripts/__init__": "",
        "scripts/train": HARNESS,
    }
    for name, text in files.items():
        (tmp_path / "domainbed" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", command.split()[1:])
    for name in ("domainbed", "domainbed.algorithms", "domainbed.networks", "domainbed.scripts"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)  # and again when the test ends
    exec(compile(script, "docs/python.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "Featurizer ['bottleneck', 'classification', 'loss'] 2\n"
