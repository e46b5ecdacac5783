"""metavib: image classifiers that work on sources they have never seen, and say when they are unsure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metavib.interfaces.folder_training import FinishedRun as FinishedRun
    from metavib.interfaces.folder_training import train as train
    from metavib.interfaces.manifests import manifest as manifest
    from metavib.interfaces.sklearn.estimator import MetaVIBClassifier as MetaVIBClassifier
    from metavib.nn.backbone import Backbone as Backbone
    from metavib.serving.predictions import Prediction as Prediction
    from metavib.serving.predictor import Predictor as Predictor
    from metavib.serving.predictor import load as load

__version__ = "0.1.0"

# DomainBed's users name `metavib.domainbed`; the file stands with the other interfaces.
__path__.append(f"{__path__[0]}/interfaces")

_MODULES = {
    "Backbone": "metavib.nn.backbone",
    "FinishedRun": "metavib.interfaces.folder_training",
    "MetaVIBClassifier": "metavib.interfaces.sklearn.estimator",
    "Prediction": "metavib.serving.predictions",
    "Predictor": "metavib.serving.predictor",
    "load": "metavib.serving.predictor",
    "manifest": "metavib.interfaces.manifests",
    "train": "metavib.interfaces.folder_training",
}
__all__ = [
    "Backbone",
    "FinishedRun",
    "MetaVIBClassifier",
    "Prediction",
    "Predictor",
    "__version__",
    "load",
    "manifest",
    "train",
]


def __getattr__(name: str) -> object:
    """Import on first use, so that `metavib --help` need not wait for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'metavib' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
