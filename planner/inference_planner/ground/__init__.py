"""How sure a figure is: what was measured, and intervals."""
