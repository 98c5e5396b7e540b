"""Give the tests of the simulation vLLM's scheduler, and the plan of 8B on an H100."""

from __future__ import annotations

import pytest
from needs import lacking

from workshop.engine.planning import plan
from workshop.vllm_package import installed


@pytest.fixture(scope="module")
def vllm():
    """Vouch for a vLLM, whose scheduler the simulation runs."""
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")


@pytest.fixture(scope="module")
def p8b():
    """Return the plan of 8B on one H100."""
    return plan("llama-3.1-8b", "h100", tensor_parallel_size=1, max_model_len=8192)
