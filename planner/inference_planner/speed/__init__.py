"""Tokens per second: kernels, and the roofline."""
