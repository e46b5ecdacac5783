"""A trained model: its directory and card, how it is measured and calibrated.

`directory.load_model` loads a model, `measuring.measure` measures it, `measures.MEASURES` is the registry of
measures, and `results` has the records of a run. `__all__` names the modules that other stages may use.
"""

__all__ = [
    "calibrating",
    "calibration",
    "card",
    "class_accuracy",
    "directory",
    "domain_calibration",
    "examples",
    "left_out",
    "look",
    "measures",
    "measuring",
    "metrics",
    "results",
    "selective",
    "source_features",
]
