"""vLLM's build for GPUs, on a login node without one: its scheduler and its classes answer as the CPU build's do."""

import json
import subprocess
import sys

import pytest
from inference_planner.catalog import load_model

from workshop.vllm_package import installed

pytestmark = pytest.mark.skipif(not installed()[1], reason="vLLM is not installed here")
NO_DEVICE = """
import sys
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
from vllm import platforms
from vllm.platforms.interface import UnspecifiedPlatform
platforms.current_platform = UnspecifiedPlatform()  # what the build for GPUs finds where none is
"""
STEP = """
from workshop.simulate.engine import Engine, Rules
engine = Engine(Rules(num_gpu_blocks=100))
engine.add("a", list(range(20)), 2)
print("scheduled", sum(tokens for _, tokens, _, _ in engine.schedule().work), flush=True)
"""
WORKER = """
from workshop.engine.exact import worker
worker.main()
"""


def test_the_scheduler_and_a_class_run_where_the_build_knows_no_device():
    job = {"config": dict(load_model("llama-3.2-1b").raw), "tp": 2, "pp": 1, "max_model_len": 4096}
    job["max_num_batched_tokens"] = 8192
    command = [sys.executable, "-c", NO_DEVICE + STEP + WORKER]
    ran = subprocess.run(
        command, input=json.dumps(job) + "\n", capture_output=True, text=True, timeout=300
    )
    assert not ran.returncode, ran.stderr[-2000:]
    lines = ran.stdout.splitlines()
    assert "scheduled 20" in lines
    answer = json.loads(lines[-1])
    assert answer.get("architecture") == "LlamaForCausalLM", answer
