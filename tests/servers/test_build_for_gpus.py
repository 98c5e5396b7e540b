"""vLLM's build for GPUs, on a login node without one: its scheduler and its classes answer as the CPU build's do."""

import json
import subprocess
import sys

import pytest
from inference_planner.catalog import load_model

from workshop.servers.vllm_main import installed

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
print(sum(tokens for _, tokens, _, _ in engine.schedule().work))
"""
WORKER = """
from workshop.engine.exact import worker
worker.main()
"""


def python(code: str, stdin: str = "") -> str:
    command = [sys.executable, "-c", NO_DEVICE + code]
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)
    assert not ran.returncode, ran.stderr[-2000:]
    return ran.stdout


def test_the_scheduler_runs_where_the_build_knows_no_device():
    assert python(STEP).split()[-1] == "20"


def test_a_class_is_built_where_the_build_knows_no_device():
    job = {"config": dict(load_model("llama-3.2-1b").raw), "tp": 2, "pp": 1, "max_model_len": 4096}
    job["max_num_batched_tokens"] = 8192
    (answer,) = [json.loads(line) for line in python(WORKER, json.dumps(job) + "\n").splitlines()]
    assert answer.get("architecture") == "LlamaForCausalLM", answer
