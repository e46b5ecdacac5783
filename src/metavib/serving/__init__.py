"""Using a trained model. Everything here works from a model directory alone."""
