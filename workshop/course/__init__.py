"""What the notebooks use: exercises, widgets, figures, a simulated class, and helpers of single
notebooks.
"""
