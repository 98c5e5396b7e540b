"""Commands that start, list and stop servers."""
