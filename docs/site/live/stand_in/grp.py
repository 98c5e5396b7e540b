"""grp is compiled for no browser; what needs it says so when it is used."""


def __getattr__(name: str):
    raise ModuleNotFoundError("grp is not in this page's Python: run this cell in JupyterLab (make workshop).")
