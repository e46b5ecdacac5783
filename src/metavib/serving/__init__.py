"""Using a trained model. Everything here works from a model directory alone.

`predictor.load` loads a model to predict with, `predictions.Prediction` is its answer, `streaming.answers`
reads any number of files, `export.export` writes ONNX, and `http` is the server. `__all__` names the modules
that other stages may use.
"""

__all__ = [
    "assurance",
    "export",
    "forecast",
    "http",
    "predictions",
    "predictor",
    "streaming",
    "words",
]
