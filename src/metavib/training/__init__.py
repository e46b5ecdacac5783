"""Training: what decides a run, the step and its loop, optimizers, averaging, selection, checkpoints."""
