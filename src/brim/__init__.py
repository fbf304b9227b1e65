"""brim keeps GPUs full of useful work while they fine-tune vision-language models."""

__version__ = "0.1.0"
