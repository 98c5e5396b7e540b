"""Helpers of single notebooks, named after them, and the servers and requests that several start."""
