"""Experiments: apply a remedy to a job, measure it against the job without it, keep or revert."""
