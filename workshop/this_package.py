"""The version and the folder of this package. It imports nothing, so that every room may ask it."""

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).parent
DATA = FOLDER / "data"  # recorded runs and logs
