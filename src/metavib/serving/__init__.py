"""Using a trained model. Everything here works from a model directory alone.

Others use `predictor.load` and `predictor.Predictor`, `predictions.Prediction`, `streaming.answers`, `hub`,
`export.export` and `http`, the server.
"""
