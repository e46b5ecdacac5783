"""Runs: one experiment from its data to its results, grids of them, and sweeps.

`one_run.run_experiment` makes one run, `grid.run_grid` many, `sweep.tuning.run_sweep` searches settings, and
`records.read_runs` reads run directories. `__all__` names the modules that other stages may use.
"""

__all__ = [
    "calibration",
    "capacity",
    "cells",
    "cross_validation",
    "examples",
    "expectation",
    "finished",
    "following",
    "grid",
    "one_run",
    "provenance",
    "records",
    "sweep",
]
