"""The parts of `serving_load.py`."""
