"""What was recorded of vLLM (workshop/data), for machines without it: one reader for all of the
course.
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
