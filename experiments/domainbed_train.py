"""DomainBed's train.py with MetaVIB among its algorithms, and with its arguments: the script of docs/python.md.

    PYTHONPATH=src:DOMAINBED python experiments/domainbed_train.py --algorithm MetaVIB --dataset RotatedMNIST ...

What DomainBed imports, is not installed and has no part in Rotated MNIST, is replaced by an empty module.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import torchvision  # before anything is replaced: torch looks for some of these itself

WITHOUT_A_PART = {
    "wilds": (),
    "wilds.datasets": (),
    "wilds.datasets.camelyon17_dataset": ("Camelyon17Dataset",),
    "wilds.datasets.fmow_dataset": ("FMoWDataset",),
    "tqdm": ("tqdm",),
}


def replace_missing() -> None:
    """Empty modules in place of those that are not installed."""
    missing = {name.partition(".")[0] for name in WITHOUT_A_PART}
    missing = {name for name in missing if importlib.util.find_spec(name) is None}
    for name, classes in WITHOUT_A_PART.items():
        if name.partition(".")[0] in missing:
            module = importlib.util.module_from_spec(ModuleSpec(name, None, is_package=True))
            for one in classes:
                setattr(module, one, object)
            sys.modules[name] = module


def main() -> None:
    """Register MetaVIB and train."""
    assert torchvision.__version__
    replace_missing()
    algorithms: Any = importlib.import_module("domainbed.algorithms")
    algorithms.MetaVIB = importlib.import_module("metavib.domainbed").MetaVIB
    runpy.run_module("domainbed.scripts.train", run_name="__main__")


if __name__ == "__main__":
    main()
