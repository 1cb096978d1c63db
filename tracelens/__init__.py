"""tracelens: where each decode step's time goes on many GPUs, and which rank makes the others wait."""

__version__ = "0.1.0"
