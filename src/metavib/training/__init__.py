"""Training: what decides a run, the step and its loop, optimizers, averaging, selection, checkpoints.

`experiment.Experiment` is everything that decides a run, `recipes.PRESETS` are published settings, `loop.train`
trains, and `run_directory.RunDirectory` says where a run leaves what. `__all__` names the modules that other
stages may use.
"""

__all__ = [
    "at_hand",
    "averaging",
    "checkpoint",
    "experiment",
    "first_network",
    "frozen",
    "information_recording",
    "label_features",
    "loop",
    "optimizer",
    "recipes",
    "run_directory",
    "stacks",
    "stages",
    "step",
]
