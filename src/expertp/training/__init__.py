"""Training one model: plan to parameter groups, the training step, a run on disk, its records, sampling from it."""
