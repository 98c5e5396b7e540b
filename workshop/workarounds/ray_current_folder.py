"""Ray's workers import code from the folder in which `ray.init` was called.

`ray/_private/worker.py` (`connect`) puts the current folder first in the sys.path of every worker, and no setting
prevents it. A file named json.py in a learner's folder would then run in place of the standard library's.

Upstream: no issue found. ray-project/ray#17556 and #28140 removed the script's folder where it does not belong, and kept
the current folder on purpose.
Versions: Ray up to 2.60. Ends when: `ray.init` has a setting that leaves the current folder out.
"""

import os
import sys

from workshop import python_process


def apply() -> None:
    """Make `ray.init` run in a folder where nobody has files, if this command line tells vLLM to use Ray."""
    if not any(word == "ray" or word.endswith("=ray") for word in sys.argv):
        return
    try:
        import ray  # pyright: ignore[reportMissingImports]  an optional part of vLLM
    except ImportError:  # vLLM reports it
        return
    original = ray.init

    def init(*args, **options):
        previous_folder = os.getcwd()
        os.chdir(python_process.NEUTRAL_FOLDER)
        try:
            return original(*args, **options)
        finally:
            os.chdir(previous_folder)

    ray.init = init
