"""The ground of a figure: what was measured, doubts, and intervals."""
