"""Known failures of vLLM's memory, machine and network: how the log says it, what it means, and the remedy. Pure.

The patterns were checked against the sources of vLLM 0.25.1 and 0.32.0 (and, for older wordings, reports
about 0.6 to 0.9), torch, NCCL, Ray, huggingface_hub and transformers.
"""

from __future__ import annotations

import re

from workshop.engine.log.failures import LIKELY, SYMPTOM, Failure, Known, known
from workshop.engine.log.known_model import CONFIGURATION, MODEL

MEMORY = (
    known(
        "kv-cache-too-small",
        r"max seq len \((?P<len>\d+)\), \(?(?P<need>[\d.]+) ?GiB KV cache is needed, which is larger than the "
        r"available KV cache memory \((?P<have>[\d.]+) ?GiB\).*?estimated maximum model length is (?P<most>\d+)",
        "One request of {len} tokens needs {need} GiB of KV cache, and only {have} GiB are left for it.",
        "Lower --max-model-len (vLLM says that {most} tokens fit), raise --gpu-memory-utilization, or use more GPUs.",
    ),
    known(
        "kv-cache-too-small",
        r"max seq len \((?P<len>\d+)\), \(?(?P<need>[\d.]+) ?GiB KV cache is needed, which is larger than the "
        r"available KV cache memory \((?P<have>[\d.]+) ?GiB\)",
        "One request of {len} tokens needs {need} GiB of KV cache, and only {have} GiB are left for it.",
        "Lower --max-model-len, raise --gpu-memory-utilization, or use more GPUs.",
    ),
    known(
        "kv-cache-too-small",
        r"The model's max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens that can be stored "
        r"in KV cache \((?P<most>\d+)\)",
        "The KV cache holds {most} tokens, fewer than one request of --max-model-len {len}.",
        "Lower --max-model-len to {most} or less, raise --gpu-memory-utilization, or use more GPUs.",
    ),
    known(
        "no-memory-for-kv-cache",
        r"No available memory for the cache blocks",
        "Weights and working memory fill the GPU: nothing is left for the KV cache.",
        "Raise --gpu-memory-utilization, lower --max-num-batched-tokens, add --enforce-eager, or spread the model "
        "over more GPUs with --tensor-parallel-size.",
    ),
    known(
        "gpu-memory-in-use",
        r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"desired GPU memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "Only {free} of the GPU's {total} GiB are free, and --gpu-memory-utilization {share} asks for {want} GiB: "
        "another process uses the GPU.",
        "End the other process (`nvidia-smi` names it), or lower --gpu-memory-utilization.",
    ),
    known(
        "host-memory-too-small",
        r"Available memory on node (?P<node>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on "
        r"(?P<when>startup|kv cache allocation) is less than "
        r"(?:desired CPU memory utilization \([\d.]+, |requested memory for kv \()"
        r"(?P<want>[\d.]+) GiB",
        "This machine has {free} GiB free, and vLLM was told to take {want} GiB.",
        "Lower VLLM_CPU_KVCACHE_SPACE (GiB) or --kv-cache-memory-bytes, or end other programs.",
    ),
    known(
        "memory-changed-while-profiling",
        r"Error in memory profiling\.",
        "Another process gave back GPU memory while vLLM measured it.",
        "Start again when nothing else uses the GPU, and start one server after the other.",
    ),
    known(
        "gpu-out-of-memory",
        r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "A GPU ran out of memory.",
        "Lower --gpu-memory-utilization or --max-num-seqs, add --enforce-eager, or spread the model over more "
        "GPUs with --tensor-parallel-size; `nvidia-smi` shows whether another process holds the memory.",
        fatal=True,
    ),
    known(
        "host-out-of-memory",
        r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)|\bMemoryError\b|Cannot allocate memory|"
        r"oom-kill|Out of memory: Killed process|OOM killer|\boom_kill\b|Some of the step tasks have been OOM Killed|"
        r"died unexpectedly \(exit code: -9\)|exit code -9\b|Worker exited .*signal: 9|\bSIGKILL\b",
        "A process of vLLM was killed (signal 9), nearly always because the host ran out of memory or the job passed "
        "its limit.",
        "Ask for more memory (SLURM: --mem), shrink the KV cache (CPU: VLLM_CPU_KVCACHE_SPACE), or load fewer "
        "weights on this machine.",
        fatal=True,
    ),
    known(
        "shared-memory-full",
        r"(?:insufficient shared memory|Bus error|unable to (?:allocate|open) shared memory|"
        r"No space left on device.*(?:/dev/shm|psm_)|shm.*No space left on device)",
        "The shared memory of the machine or container (/dev/shm) is too small.",
        "Containers: --shm-size 16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at /dev/shm).",
        fatal=True,
    ),
    known(
        "disk-full",
        r"No space left on device|Disk quota exceeded|Not enough free disk space",
        "A disk is full, or a quota is used up.",
        "Free space, or point HF_HOME (models) and VLLM_CACHE_ROOT (compile cache) to a bigger disk; `df -h` and "
        "`quota` show what is full.",
        fatal=True,
    ),
)

MACHINE = (
    known(
        "port-in-use",
        r"[Aa]ddress already in use|EADDRINUSE",
        "Another program already listens on this port.",
        "Choose another --port, or stop the other server (`workshop servers` lists those known here).",
    ),
    known(
        "too-few-gpus",
        r"World size \((?P<need>\d+)\) is larger than the number of available GPUs \((?P<have>\d+)\)",
        "The model is to be spread over {need} GPUs, but this node has {have}.",
        "Lower --tensor-parallel-size × --pipeline-parallel-size to {have}, or start the server on several nodes "
        "(--nnodes, or --distributed-executor-backend ray).",
    ),
    known(
        "too-few-gpus",
        r"please ensure that world_size \((?P<need>\d+)\) is less than than max local gpu count \((?P<have>\d+)\)|"
        r"Not enough (?:total available nodes|resources to allocate)",
        "vLLM was asked to use more GPUs than there are here.",
        "Lower --tensor-parallel-size × --pipeline-parallel-size, or give the job more GPUs.",
    ),
    known(
        "ray-too-few-gpus",
        r"Cannot provide a placement group|exceeds the total number of available \w+s in the placement group\. "
        r"Required|Current node has no \w+ available|You don't have enough GPUs available in a current node",
        "Ray does not have the GPUs that were asked for: workers have not joined, or other jobs hold them.",
        "`ray status` shows what Ray has; start all workers before the server, and give VLLM_HOST_IP the address "
        "that Ray uses.",
    ),
    known(
        "ray-unreachable",
        r"Could not find any running Ray instance|Unable to connect to GCS|Failed to connect to GCS|"
        r"ray\.exceptions\.RaySystemError",
        "No Ray cluster answers.",
        "Start the head with `ray start --head` first and check with `ray status`, or use vLLM's own --nnodes "
        "instead of Ray.",
    ),
    known(
        "ray-missing",
        r"Failed to import Ray|Ray is not installed",
        "Ray was asked for, but is not installed.",
        "pip install ray, or use --distributed-executor-backend mp.",
    ),
    known(
        "no-gpu",
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"libcuda\.so\.1: cannot open shared object|no CUDA-capable device is detected",
        "vLLM finds no GPU (or no driver) on this machine.",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES; containers need --gpus all or --nv, SLURM jobs --gpus.",
    ),
    known(
        "gpu-too-old",
        r"no kernel image is available for execution on the device|CUDA driver version is insufficient|"
        r"The NVIDIA driver on your system is too old",
        "The GPU or its driver is too old (or too new) for this build of vLLM.",
        "Update the driver, or install a vLLM built for this CUDA version and GPU.",
        rank=LIKELY,
    ),
    known(
        "gpu-fault",
        r"an illegal memory access was encountered|CUDA error: (?:unspecified launch failure|uncorrectable ECC error)|"
        r"device-side assert triggered",
        "A CUDA kernel failed on a GPU.",
        "Try --enforce-eager and another attention backend; if it stays, look for Xid errors in `dmesg`: the GPU may "
        "be faulty.",
        fatal=True,
    ),
    known(
        "nccl",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclRemoteError|ncclInternalError|DistBackendError|"
        r"Watchdog caught collective operation timeout",
        "The GPUs could not talk to each other (NCCL).",
        "Set NCCL_DEBUG=INFO and look which link fails; on several nodes set NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME to the network between them; in one node try NCCL_P2P_DISABLE=1.",
        fatal=True,
    ),
    known(
        "rendezvous",
        r"DistNetworkError|DistStoreError|client socket has timed out|Timed out after \d+ seconds waiting for clients|"
        r"Gloo connectFullMesh failed|gloo.*(?:Connection refused|connect timeout)",
        "The nodes did not find each other at the start.",
        "Check that every node was started with the same master address and port, that the port is open, and that "
        "VLLM_HOST_IP and GLOO_SOCKET_IFNAME name the network between them.",
    ),
    known(
        "engine-start-timeout",
        r"Timed out waiting for engine core processes|Did not receive response from (?:front-end|engine)",
        "The engine took longer to start than the API server was willing to wait.",
        "Raise VLLM_ENGINE_READY_TIMEOUT_S; big models on a slow file system load for many minutes.",
    ),
    known(
        "permission",
        r"PermissionError|Permission denied",
        "A file or folder may not be read or written.",
        "The log line names it: check its owner, and that HF_HOME and VLLM_CACHE_ROOT are yours.",
        rank=LIKELY,
    ),
    known(
        "time-limit",
        r"DUE TO TIME LIMIT",
        "SLURM ended the job at its time limit.",
        "Ask for more time with --time, or let the job requeue itself.",
        fatal=True,
    ),
)

SYMPTOMS = (
    known(
        "worker-died",
        r"Worker proc (?P<name>\S+) died unexpectedly|WorkerProc failed to start|RayWorkerProc rank=(?P<rank>\d+) died|"
        r"Worker \S+ pid=\d+ died|Worker failed with error|A worker died or was killed",
        "A worker process ended, and the server with it.",
        "Look further up for the first error of that worker; if there is none, it was killed, most often because "
        "the host ran out of memory.",
        rank=SYMPTOM,
        fatal=True,
    ),
    known(
        "engine-core-died",
        r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|EngineCore failed to start|"
        r"Engine core proc(?:ess)? \S+ died unexpectedly|EngineCore encountered a fatal|"
        r"Engine process failed to start|Engine loop is not running|engine core exited unexpectedly",
        "The engine process ended, and the API server with it.",
        "Look further up in the log for the first error; if there is none, the process was killed, most often "
        "because the host ran out of memory.",
        rank=SYMPTOM,
        fatal=True,
    ),
)

TABLE: tuple[Known, ...] = (*MODEL, *CONFIGURATION, *MEMORY, *MACHINE, *SYMPTOMS)
# One pattern first: nearly every line is none of these.
ANY = re.compile("|".join(f"(?:{re.sub(r'[?]P<[a-z]+>', '?:', row.pattern.pattern)})" for row in TABLE))


LOOKED_AT_CHARS = 2000  # the message is at the front; some patterns cost the square of the length


def diagnose(text: str) -> Failure | None:
    """Return what a line means, if it is one of the known failures."""
    text = text[:LOOKED_AT_CHARS]
    if not ANY.search(text):
        return None
    for row in TABLE:
        if match := row.pattern.search(text):
            return row.explain(match, text)
    return None
