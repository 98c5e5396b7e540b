"""Show how long users wait under a load, as a simulation computes it."""
