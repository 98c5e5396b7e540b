"""What was recorded of vLLM (workshop/data), for machines without it: one reader for all of the course."""

import json
from functools import cache
from pathlib import Path

import workshop
from workshop.errors import BadInput

DATA = Path(workshop.__file__).parent / "data"


@cache
def read(name: str) -> dict:
    """Return what a JSON file of the data holds; it is read once, and nobody changes it."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def kept(found: dict, key: str, remedy: str) -> object:
    """Return a recorded result. Raises BadInput, with what to do, for what was not recorded."""
    if key not in found:
        raise BadInput("vLLM is not installed here, and this was not recorded.", remedy)
    return found[key]
