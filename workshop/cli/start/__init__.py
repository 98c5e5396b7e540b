"""Commands for the first minutes: what is here, JupyterLab, notebooks."""
