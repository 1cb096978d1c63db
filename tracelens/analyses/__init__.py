"""Model tables in, one documented answer out: each module answers one question."""
