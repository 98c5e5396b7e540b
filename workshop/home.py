"""Find the folder of the workshop's own files: $WORKSHOP_HOME, by default ~/.workshop."""

import os
from pathlib import Path

from workshop.errors import BadInput


def home() -> Path:
    """Return the folder of this user's records, logs and progress (not created).

    Raises BadInput: there is no home folder.
    """
    setting = os.environ.get("WORKSHOP_HOME") or "~/.workshop"
    try:
        return Path(setting).expanduser()
    except RuntimeError:  # ~name of nobody, or no home folder at all
        remedy = "Set WORKSHOP_HOME to a folder that you may write."
        raise BadInput(f"There is no home folder for WORKSHOP_HOME={setting!r}.", remedy) from None
