"""Timed requests to a server, and what could spoil their figures.

`timed` is the one sender. `points` measures loads of random prompts and the turns of agents,
`classes` a class of learners, `server_clock` how long a step of a server on this machine
takes. `checks` names the faults of a measurement, `prediction` has the simulated figures beside the
measured ones, and `results` reads the files of other measurements. `evaluation` asks a server the
questions of a task, and `paired` compares two servers' answers to them.
"""
