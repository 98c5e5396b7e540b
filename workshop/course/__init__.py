"""Exercises, widgets, figures, a simulated class, and helpers of single notebooks."""
