"""Widgets of the notebooks, each in a folder of its own.

`view.py` is the widget. Larger widgets have their numbers in `case.py`, their HTML in `picture.py`.
"""
