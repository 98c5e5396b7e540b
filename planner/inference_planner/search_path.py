"""Keep Python files of the current folder from taking the place of the standard library's.

`python -m` puts the current folder first in sys.path, and so does an empty entry of PYTHONPATH. At
the top only what every Python has loaded when it starts is imported: the command line calls this
before any other import.
"""

import os
import sys


def leave_current_folder() -> None:
    """Take the current folder out of sys.path, unless this package is installed there."""
    try:
        here = os.getcwd()
    except OSError:  # the folder is gone
        here = ""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if entry == own or entry not in ("", here)]
