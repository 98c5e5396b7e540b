"""numpy is compiled for no browser; what needs it says so when it is used."""

float64 = float  # IPython looks up these two where NumPy is imported


def set_printoptions(**options: object) -> None:
    """Do nothing: no array is printed."""


def __getattr__(name: str):
    raise ModuleNotFoundError("numpy is not in this page's Python: run this cell in JupyterLab (make workshop).")
