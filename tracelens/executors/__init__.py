"""Many exports read in several processes, here or on other machines: portions of a run are read apart, then put together."""
