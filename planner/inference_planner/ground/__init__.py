"""The ground of a figure: what was measured, and intervals."""
