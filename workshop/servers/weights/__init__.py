"""Weights on a disk: downloaded whole, checked."""
