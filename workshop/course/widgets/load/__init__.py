"""How long users wait under a load, as a simulation finds it."""
