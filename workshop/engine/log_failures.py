"""Known failures of vLLM: how the log says it, what it means in plain words, and the remedy. Pure.

The patterns were checked against the sources of vLLM 0.25.1 and 0.32.0 (and, for older wordings, reports
about 0.6 to 0.9), torch, NCCL, Ray, huggingface_hub and transformers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# How much an error explains: a symptom ("engine core died") gives way to the error behind it.
SYMPTOM, UNEXPLAINED, KNOWN = 0, 1, 2


@dataclass(frozen=True)
class Failure:
    """The first real error of a log.

    what: one plain sentence; remedy: one sentence; line: vLLM's own words; key: the failure's short name;
    rank: SYMPTOM, UNEXPLAINED or KNOWN; fatal: whether it ends a server that was already running.
    """

    what: str
    remedy: str
    line: str
    key: str = ""
    rank: int = KNOWN
    fatal: bool = False


@dataclass(frozen=True)
class Known:
    """A row of the table; what and remedy may name the pattern's groups as {name}."""

    key: str
    pattern: re.Pattern[str]
    what: str
    remedy: str
    rank: int = KNOWN
    fatal: bool = False

    def explain(self, match: re.Match[str], line: str) -> Failure:
        said = match.groupdict()
        fallback = next((value for value in said.values() if value), "?")  # alternatives name their own group
        groups = {name: value or fallback for name, value in said.items()}
        return Failure(self.what.format(**groups), self.remedy.format(**groups), line.strip()[:500],
                       self.key, self.rank, self.fatal)  # fmt: skip


def _known(key: str, pattern: str, what: str, remedy: str, **more) -> Known:
    return Known(key, re.compile(pattern), what, remedy, **more)


MODEL = (
    _known(
        "model-not-found",
        r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '(?P<model>[^']*)'|"
        r"(?P<other>\S+) is not a local folder and is not a valid model identifier",
        "There is no model folder {model}: vLLM took the path for a Hub id.",
        "Check the path (inside a container: the path there), or fetch the model first with `workshop prefetch`.",
    ),
    _known(
        "no-config",
        r"Invalid repository ID or local directory specified:\s*'?(?P<model>[^'\n]*)|"
        r"(?P<folder>\S+) does not appear to have a file named config\.json",
        "The model {model} has no config.json: it is not a model folder, or not a whole one.",
        "Give the folder that holds config.json and the *.safetensors files; fetch it again if the file is missing.",
    ),
    _known(
        "config-unreadable",
        r"(?:It looks like )?the config file at '?(?P<file>[^']*?config\.json)'? is not a valid JSON|"
        r"OSError: .*config\.json.* is not a valid JSON file",
        "The model's config.json is no valid JSON: the file was cut or changed.",
        "Fetch the file again, and compare its size with the original.",
    ),
    _known(
        "architecture-not-supported",
        r"Model architectures \['?(?P<name>[^\]']+)'?[^\]]*\] (?:are not supported for now|failed to be inspected)",
        "This version of vLLM does not know the architecture {name}.",
        "Look whether a newer vLLM supports it, or try --model-impl transformers.",
    ),
    _known(
        "model-type-not-known",
        r"model type [`'](?P<name>[^`']+)[`'] but Transformers does not recognize this architecture",
        "The installed transformers library does not know the model type {name}.",
        "Update transformers and vLLM to versions that support the model.",
    ),
    _known(
        "gated-model",
        r"Cannot access gated repo for url|You are trying to access a gated repo|GatedRepoError|"
        r"Access to model \S+ is restricted",
        "The model is gated: its licence has to be accepted on the Hub, and no token that may read it was given.",
        "Accept the licence on the model's page, then `hf auth login` or set HF_TOKEN; on a cluster fetch the "
        "model once with `workshop prefetch`.",
    ),
    _known(
        "model-not-on-hub",
        r"Repository Not Found for url: (?P<url>\S+?)\.?$|RepositoryNotFoundError",
        "The Hub has no such model, or it is private and no token that may read it was given.",
        "Check the spelling of the model's id; for a private model log in with `hf auth login` or set HF_TOKEN.",
    ),
    _known(
        "hub-offline",
        r"outgoing traffic has been disabled|OfflineModeIsEnabled|Cannot reach \S+: offline mode is enabled|"
        r"offline mode is enabled",
        "The model is not in the local cache, and HF_HUB_OFFLINE forbids fetching it.",
        "Fetch the model where there is internet (`workshop prefetch MODEL --to FOLDER`), and give the folder; or "
        "unset HF_HUB_OFFLINE.",
    ),
    _known(
        "hub-unreachable",
        r"We couldn't connect to '(?P<host>[^']*)' to load the files|LocalEntryNotFoundError|"
        r"An error happened while trying to locate the file on the Hub|"
        r"(?:Failed to establish a new connection|Name or service not known|Temporary failure in name resolution|"
        r"Network is unreachable|Max retries exceeded with url).*",
        "The Hugging Face Hub cannot be reached from this machine.",
        "Compute nodes often have no internet: fetch the model on a login node with `workshop prefetch MODEL --to "
        "FOLDER`, and serve that folder.",
    ),
    _known(
        "no-weights",
        r"Cannot find any model weights with `(?P<model>[^`]*)`",
        "The folder {model} holds no weights (no *.safetensors or *.bin files).",
        "Fetch the model again; to try a configuration without weights, add --load-format dummy.",
    ),
    _known(
        "missing-shard",
        r"Weight files referenced in index but missing: \{(?P<files>.*)\}|No such file or directory: ?\\?\"?'?(?P<file>[^'\"]*\.(?:safetensors|bin))|"
        r"(?P<other>\S+\.safetensors)\S* (?:is missing|not found)|"
        r"Following weights were not initialized from checkpoint|"
        r"[Mm]issing .*(?:shard|safetensors) file",
        "A part of the weights is missing: the model folder is not complete.",
        "Compare the files with model.safetensors.index.json, and fetch what is missing.",
    ),
    _known(
        "corrupt-shard",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader|HeaderTooLarge|"
        r"PytorchStreamReader failed|invalid load key",
        "A file of the weights is damaged or was cut: its header does not match its size.",
        "Fetch the files again, and compare their sizes (or SHA-256 sums) with the original; a full disk or a "
        "quota is a usual cause.",
    ),
    _known(
        "weights-do-not-fit-config",
        r"size mismatch for|Attempted to load weight \(torch\.Size.* into parameter|"
        r"There is no module or parameter named",
        "The weights do not have the shapes that config.json says: they belong to another model or precision.",
        "Use config.json and weights from one and the same model revision.",
    ),
    _known(
        "no-tokenizer",
        r"Can't load (?:the )?tokenizer for|Couldn't instantiate the backend tokenizer|Tokenizer class \S+ does not exist|"
        r"does not appear to have a file named tokenizer|Unable to load vocabulary|not a string.*tokenizer",
        "The tokenizer cannot be loaded: its files are not in the model folder, or incomplete.",
        "Fetch tokenizer.json and tokenizer_config.json as well, or give --tokenizer.",
    ),
    _known(
        "remote-code",
        r"requires you to execute the (?:configuration file|model file|tokenizer)|"
        r"pass the argument `trust_remote_code=True`",
        "The model brings its own Python code, and vLLM does not run it unasked.",
        "Read that code; if you trust it, add --trust-remote-code.",
    ),
)

CONFIGURATION = (
    _known(
        "tensor-parallel-does-not-divide",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "{heads} attention heads cannot be divided among {tp} GPUs.",
        "Choose a --tensor-parallel-size that divides {heads}, and use --pipeline-parallel-size for the rest.",
    ),
    _known(
        "shape-does-not-divide",
        r"(?P<a>\d+) is not divisible by (?P<b>\d+)",
        "A dimension of the model ({a}) cannot be divided by {b}, which is most often the tensor parallel size.",
        "Choose a smaller --tensor-parallel-size, and use --pipeline-parallel-size for the rest.",
    ),
    _known(
        "pipeline-not-supported",
        r"Pipeline parallelism is not supported for this model",
        "vLLM cannot split this model into pipeline stages.",
        "Use --tensor-parallel-size alone.",
    ),
    _known(
        "max-model-len-too-long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?P<key>\w+)=(?P<most>\d+)",
        "--max-model-len {asked} is more than the {most} tokens that the model was made for.",
        "Give at most --max-model-len {most}.",
    ),
    _known(
        "bfloat16-not-supported",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<gpu>.+?) GPU",
        "The {gpu} is too old for bfloat16 (it needs compute capability 8.0, an A100 or newer).",
        "Add --dtype half.",
    ),
    _known(
        "quantization-not-supported",
        r"[Tt]he quantization method (?P<name>\S+) is not supported for the current GPU|"
        r"(?P<other>\S+) quantization is currently not supported (?:in|on|for)",
        "This GPU is too old for the model's quantization ({name}), or vLLM has no kernel for it there.",
        "Take the model in another precision, or a newer GPU: FP8 needs an L4, L40S or H100, or newer.",
    ),
    _known(
        "quantization-unknown",
        r"Unknown quantization method: (?P<name>\S+?)\. Must",
        "vLLM does not know the quantization method {name}.",
        "Leave --quantization out if the model is quantized already; otherwise use one of the methods that the log lists.",
    ),
    _known(
        "quantization-mismatch",
        r"Quantization method specified in the model config \((?P<has>\S+)\) does not match",
        "The model is quantized with {has}, but --quantization asks for something else.",
        "Leave --quantization out: vLLM reads it from config.json.",
    ),
    _known(
        "unknown-argument",
        r"error: unrecognized arguments: (?P<argument>.+)",
        "vLLM does not know the argument {argument}.",
        "Check its spelling with `vllm serve --help=all`; flags differ between versions.",
    ),
    _known(
        "bad-argument",
        r"error: argument (?P<argument>[^:]+): (?P<why>.+)",
        "The argument {argument} was given a wrong value: {why}.",
        "See `vllm serve --help={argument}`.",
    ),
)

MEMORY = (
    _known(
        "kv-cache-too-small",
        r"To serve at least one request with the model(?:s|'s) max seq len \((?P<len>\d+)\), \(?(?P<need>[\d.]+) "
        r"?GiB KV cache is needed, which is larger than the available KV cache memory \((?P<have>[\d.]+) ?GiB\)"
        r".*?estimated maximum model length is (?P<most>\d+)",
        "One request of {len} tokens needs {need} GiB of KV cache, and only {have} GiB are left for it.",
        "Lower --max-model-len (vLLM says that {most} tokens fit), raise --gpu-memory-utilization, or use more GPUs.",
    ),
    _known(
        "kv-cache-too-small",
        r"max seq len \((?P<len>\d+)\), \(?(?P<need>[\d.]+) ?GiB KV cache is needed, which is larger than the available KV "
        r"cache memory \((?P<have>[\d.]+) ?GiB\)",
        "One request of {len} tokens needs {need} GiB of KV cache, and only {have} GiB are left for it.",
        "Lower --max-model-len, raise --gpu-memory-utilization, or use more GPUs.",
    ),
    _known(
        "kv-cache-too-small",
        r"The model's max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens that can be stored "
        r"in KV cache \((?P<most>\d+)\)",
        "The KV cache holds {most} tokens, fewer than one request of --max-model-len {len}.",
        "Lower --max-model-len to {most} or less, raise --gpu-memory-utilization, or use more GPUs.",
    ),
    _known(
        "no-memory-for-kv-cache",
        r"No available memory for the cache blocks",
        "Weights and working memory fill the GPU: nothing is left for the KV cache.",
        "Raise --gpu-memory-utilization, lower --max-num-batched-tokens, add --enforce-eager, or spread the model "
        "over more GPUs with --tensor-parallel-size.",
    ),
    _known(
        "gpu-memory-in-use",
        r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired GPU "
        r"memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "Only {free} of the GPU's {total} GiB are free, and --gpu-memory-utilization {share} asks for {want} GiB: "
        "another process uses the GPU.",
        "End the other process (`nvidia-smi` names it), or lower --gpu-memory-utilization.",
    ),
    _known(
        "host-memory-too-small",
        r"Available memory on node (?P<node>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on (?P<when>startup|kv cache "
        r"allocation) is less than (?:desired CPU memory utilization \([\d.]+, |requested memory for kv \()"
        r"(?P<want>[\d.]+) GiB",
        "This machine has {free} GiB free, and vLLM was told to take {want} GiB.",
        "Lower VLLM_CPU_KVCACHE_SPACE (GiB) or --kv-cache-memory-bytes, or end other programs.",
    ),
    _known(
        "memory-changed-while-profiling",
        r"Error in memory profiling\.",
        "Another process gave back GPU memory while vLLM measured it.",
        "Start again when nothing else uses the GPU, and start one server after the other.",
    ),
    _known(
        "gpu-out-of-memory",
        r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "A GPU ran out of memory.",
        "Lower --gpu-memory-utilization or --max-num-seqs, add --enforce-eager, or spread the model over more "
        "GPUs with --tensor-parallel-size; `nvidia-smi` shows whether another process holds the memory.",
        fatal=True,
    ),
    _known(
        "host-out-of-memory",
        r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)|\bMemoryError\b|Cannot allocate memory|"
        r"oom-kill|Out of memory: Killed process|OOM killer|\boom_kill\b|Some of the step tasks have been OOM Killed|"
        r"died unexpectedly \(exit code: -9\)|exit code -9\b|Worker exited .*signal: 9|\bSIGKILL\b",
        "A process of vLLM was killed (signal 9): nearly always the host ran out of memory, or the job passed its limit.",
        "Ask for more memory (SLURM: --mem), shrink the KV cache (CPU: VLLM_CPU_KVCACHE_SPACE), or load fewer "
        "weights on this machine.",
        fatal=True,
    ),
    _known(
        "shared-memory-full",
        r"(?:insufficient shared memory|Bus error|unable to (?:allocate|open) shared memory|"
        r"No space left on device.*(?:/dev/shm|psm_)|shm.*No space left on device)",
        "The shared memory of the machine or container (/dev/shm) is too small.",
        "Containers: --shm-size 16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at /dev/shm).",
        fatal=True,
    ),
    _known(
        "disk-full",
        r"No space left on device|Disk quota exceeded|Not enough free disk space",
        "A disk is full, or a quota is used up.",
        "Free space, or point HF_HOME (models) and VLLM_CACHE_ROOT (compile cache) to a bigger disk; `df -h` and "
        "`quota` show what is full.",
        fatal=True,
    ),
)

MACHINE = (
    _known(
        "port-in-use",
        r"[Aa]ddress already in use|EADDRINUSE",
        "Another program already listens on this port.",
        "Choose another --port, or stop the other server (`workshop servers` lists those known here).",
    ),
    _known(
        "too-few-gpus",
        r"World size \((?P<need>\d+)\) is larger than the number of available GPUs \((?P<have>\d+)\)",
        "The model is to be spread over {need} GPUs, but this node has {have}.",
        "Lower --tensor-parallel-size × --pipeline-parallel-size to {have}, or start the server on several nodes "
        "(--nnodes, or --distributed-executor-backend ray).",
    ),
    _known(
        "too-few-gpus",
        r"please ensure that world_size \((?P<need>\d+)\) is less than than max local gpu count \((?P<have>\d+)\)|"
        r"Not enough (?:total available nodes|resources to allocate)",
        "vLLM was asked to use more GPUs than there are here.",
        "Lower --tensor-parallel-size × --pipeline-parallel-size, or give the job more GPUs.",
    ),
    _known(
        "ray-too-few-gpus",
        r"Cannot provide a placement group|exceeds the total number of available \w+s in the placement group\. Required|"
        r"Current node has no \w+ available|You don't have enough GPUs available in a current node",
        "Ray does not have the GPUs that were asked for: workers have not joined, or other jobs hold them.",
        "`ray status` shows what Ray has; start all workers before the server, and give VLLM_HOST_IP the address "
        "that Ray uses.",
    ),
    _known(
        "ray-unreachable",
        r"Could not find any running Ray instance|Unable to connect to GCS|Failed to connect to GCS|"
        r"ray\.exceptions\.RaySystemError",
        "No Ray cluster answers.",
        "Start the head with `ray start --head` first and check with `ray status`, or use vLLM's own --nnodes "
        "instead of Ray.",
    ),
    _known(
        "ray-missing",
        r"Failed to import Ray|Ray is not installed",
        "Ray was asked for, but is not installed.",
        "pip install ray, or use --distributed-executor-backend mp.",
    ),
    _known(
        "no-gpu",
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"libcuda\.so\.1: cannot open shared object|no CUDA-capable device is detected",
        "vLLM finds no GPU (or no driver) on this machine.",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES; containers need --gpus all or --nv, SLURM jobs --gpus.",
    ),
    _known(
        "gpu-too-old",
        r"no kernel image is available for execution on the device|CUDA driver version is insufficient|"
        r"The NVIDIA driver on your system is too old",
        "The GPU or its driver is too old (or too new) for this build of vLLM.",
        "Update the driver, or install a vLLM built for this CUDA version and GPU.",
    ),
    _known(
        "gpu-fault",
        r"an illegal memory access was encountered|CUDA error: (?:unspecified launch failure|uncorrectable ECC error)|"
        r"device-side assert triggered",
        "A CUDA kernel failed on a GPU.",
        "Try --enforce-eager and another attention backend; if it stays, look for Xid errors in `dmesg` (a faulty GPU).",
        fatal=True,
    ),
    _known(
        "nccl",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclRemoteError|ncclInternalError|DistBackendError|"
        r"Watchdog caught collective operation timeout",
        "The GPUs could not talk to each other (NCCL).",
        "Set NCCL_DEBUG=INFO and look which link fails; on several nodes set NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME to the network between them; in one node try NCCL_P2P_DISABLE=1.",
        fatal=True,
    ),
    _known(
        "rendezvous",
        r"DistNetworkError|DistStoreError|client socket has timed out|Timed out after \d+ seconds waiting for clients|"
        r"Gloo connectFullMesh failed|gloo.*(?:Connection refused|connect timeout)",
        "The nodes did not find each other at the start.",
        "Check that every node was started with the same master address and port, that the port is open, and that "
        "VLLM_HOST_IP and GLOO_SOCKET_IFNAME name the network between them.",
    ),
    _known(
        "engine-start-timeout",
        r"Timed out waiting for engine core processes|Did not receive response from (?:front-end|engine)",
        "The engine took longer to start than the API server was willing to wait.",
        "Raise VLLM_ENGINE_READY_TIMEOUT_S; big models on a slow file system load for many minutes.",
    ),
    _known(
        "permission",
        r"PermissionError|Permission denied",
        "A file or folder may not be read or written.",
        "The log line names it: check its owner, and that HF_HOME and VLLM_CACHE_ROOT are yours.",
    ),
    _known(
        "time-limit",
        r"DUE TO TIME LIMIT",
        "SLURM ended the job at its time limit.",
        "Ask for more time with --time, or let the job requeue itself.",
        fatal=True,
    ),
)

SYMPTOMS = (
    _known(
        "worker-died",
        r"Worker proc (?P<name>\S+) died unexpectedly|WorkerProc failed to start|RayWorkerProc rank=(?P<rank>\d+) died|"
        r"Worker \S+ pid=\d+ died|Worker failed with error|A worker died or was killed",
        "A worker process ended, and the server with it.",
        "Look further up for the first error of that worker; if there is none, it was killed, most often because "
        "the host ran out of memory.",
        rank=SYMPTOM,
        fatal=True,
    ),
    _known(
        "engine-core-died",
        r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|EngineCore failed to start|"
        r"Engine core proc \S+ died unexpectedly|Engine core process \S+ died unexpectedly|EngineCore encountered a fatal|"
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
ANY = re.compile("|".join(f"(?:{re.sub(r'[?]P<[a-z]+>', '?:', known.pattern.pattern)})" for known in TABLE))


def diagnose(text: str) -> Failure | None:
    """Return what a line means, if it is one of the known failures."""
    if not ANY.search(text):
        return None
    for known in TABLE:
        if match := known.pattern.search(text):
            return known.explain(match, text)
    return None
