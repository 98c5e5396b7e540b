"""Reads the recorded data of vLLM (workshop/data) for all of the course.

It is for machines where vLLM is missing.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from workshop import install_words
from workshop.errors import BadInput
from workshop.this_package import DATA

REMEDY = (
    "Set the numbers back to those of the notebook, "
    f"or run `{install_words.setup_command()}` on a machine with Linux."
)


@cache
def read(name: str) -> dict:
    """Return what a JSON file of the data holds; it is read once, and nobody changes it."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def recorded(path: Path, part: str, key: str) -> Any:
    """Return what a file of the data has of a part under a key, as JSON.

    Raises:
        BadInput: it was not recorded.
    """
    rows = read(path.name)[part]
    if key not in rows:
        raise BadInput("vLLM is not installed here, and this was not recorded.", REMEDY)
    return rows[key]
