"""Measurements of a server that check themselves.

`vllm bench serve` sends the load, and what could spoil a figure is checked.

`points.measure` runs one point for each rate or concurrency; `checks` names the faults of a point;
`prediction` has the simulated figures beside the measured ones; `results` reads the files of other
measurements.
"""
