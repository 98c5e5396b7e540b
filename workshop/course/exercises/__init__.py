"""Exercises: checks, hints, solutions and predictions; the texts and judges are in sets."""
