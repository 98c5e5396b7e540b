"""On the PYTHONPATH of a job's site: the small engine runs where a node starts vLLM, in the same process."""

import os
import sys

if "workshop.servers.vllm_main" in sys.orig_argv:
    engine = os.path.join(os.path.dirname(__file__), "engine.py")
    os.execv(sys.executable, [sys.executable, "-I", engine])
