"""The fast trainer: configuration, step, loop, precision, optimizer, checkpoints."""
