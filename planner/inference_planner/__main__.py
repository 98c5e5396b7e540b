"""`python -P -m inference_planner`: the command `inference-planner`."""

import sys

from inference_planner.cli import main

if __name__ == "__main__":
    sys.exit(main())
