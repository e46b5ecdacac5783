"""Runs: one experiment from its data to its results, grids of them, and sweeps.

Others use `one_run.run_experiment`, `cells.Cell`, `grid.run_grid`, `cross_validation`, `records.read_runs`,
`capacity`, `expectation` and `sweep`.
"""
