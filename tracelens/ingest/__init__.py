"""Exports in, raw tables out. Everything that nsys calls by a name is known here and nowhere else."""
