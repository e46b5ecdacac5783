"""A trained model: its directory and card, how it is measured and calibrated.

Others use `directory.load_model` and `directory.build_algorithm`, `measuring.measure`, the registry
`measures.MEASURES`, `calibration`, `card.model_card`, `class_accuracy` and `soundness`.
"""
