"""The parts of a checkpoint: layout, staging, the process that writes, reading, older formats."""
