"""numpy is compiled for no browser; what needs it says so when it is used."""

from not_here import missing

float64 = float  # IPython looks up these two where NumPy is imported


class ndarray:
    """What annotations name."""


def set_printoptions(**options: object) -> None:
    """Do nothing: no array is printed."""


__getattr__ = missing("numpy")
