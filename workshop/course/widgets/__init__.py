"""Widgets of the notebooks, each in a folder: its view, and where there is much of either, its numbers
and its picture.
"""
