"""JupyterLab on the learner's copy of the course: its settings, its kernel, its terminal."""
