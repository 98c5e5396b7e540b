"""Reads the recorded data of vLLM (workshop/data) for all of the course.

It is for machines where vLLM is missing.
"""

import json
from functools import cache
from pathlib import Path

import workshop

DATA = Path(workshop.__file__).parent / "data"


@cache
def read(name: str) -> dict:
    """Return what a JSON file of the data holds; it is read once, and nobody changes it."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))
