"""The patterns that find facts in vLLM's log lines, and what they do with them. Pure.

Each rule is (a literal that must occur, a pattern, what to do with the match): the literal makes a line
that matches nothing cost about two microseconds. Messages: vLLM 0.6.4 to 0.32, from their sources.
"""

import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from workshop.engine.log.args import parse_arguments
from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.lines import Line, seconds_between

DEFAULT_BLOCK_SIZE = 16  # tokens; vLLM's default on GPUs in every version read here
LARGEST = 10**15  # tokens, GiB or seconds: more was not printed by an engine
MOST_REMEMBERED = 1000  # different warnings, or routes
KNOWN_VERSIONS = ((0, 6), (0, 32))  # the formats that were checked, first and last

Match = re.Match[str]
Apply = Callable[[EngineLog, Match, Line], None]


def decimal(text: str) -> float:
    """Return a number as a log prints it. Raises ValueError for one that was cut, or that ran into another."""
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ValueError(text)
    return round(value, 9)  # and not 1e-320, by which nothing can be divided


def whole(text: str) -> int:
    """Return a whole number, with commas or without. Raises ValueError as `decimal` does."""
    text = text.replace(",", "").replace("_", "")
    if len(text) > len(str(LARGEST)):
        raise ValueError(text)
    return int(text)


def _remember(found: list[str], text: str) -> None:
    if len(found) < MOST_REMEMBERED and text not in found:
        found.append(text)


def _set(name: str, convert: Callable[[str], Any] = str, keep: bool = False) -> Apply:
    def apply(log: EngineLog, match: Match, line: Line) -> None:
        if not (keep and getattr(log, name) is not None):
            setattr(log, name, convert(match[1]))

    return apply


def _rank(log: EngineLog, line: Line) -> RankFacts:
    return log.ranks.setdefault(line.process, RankFacts())


def _set_version(log: EngineLog, match: Match, line: Line) -> None:
    numbers = tuple(whole(part) for part in re.findall(r"\d+", log.version or match[1])[:2])
    log.version = log.version or match[1]
    log.known_version = KNOWN_VERSIONS[0] <= numbers <= KNOWN_VERSIONS[1]
    note = f"vLLM {log.version} is not one of the versions whose log format was checked (0.6 to 0.32)."
    if not log.known_version:
        _remember(log.notes, note)


WORDS = ("model", "dtype", "quantization", "kv_cache_dtype", "load_format")
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len",
         "max_num_batched_tokens", "max_num_seqs", "block_size")  # fmt: skip
KINDS = dict.fromkeys(WORDS, (str,)) | dict.fromkeys(SIZES, (int,))
KINDS |= {"enforce_eager": (bool,), "gpu_memory_utilization": (float, int)}
OLD_NAMES = {"max_seq_len": "max_model_len"}
UNDECIDED = ("auto", "None", "LoadFormat.AUTO")


def _take(log: EngineLog, values: dict[str, Any]) -> None:
    for key in (*KINDS, *OLD_NAMES):
        name, value = OLD_NAMES.get(key, key), values.get(key)
        in_range = isinstance(value, str | bool) or (isinstance(value, int | float) and 0 < value <= LARGEST)
        if type(value) not in KINDS[name] or not in_range:
            continue  # None, -1 and "auto" leave it to vLLM, which says later what it took
        if name in ("dtype", "quantization", "load_format") and value in UNDECIDED:
            continue
        if isinstance(value, str):
            value = value.removeprefix("torch.").removeprefix("LoadFormat.")
        setattr(log, name, value.lower() if name == "load_format" else value)


def _set_args(log: EngineLog, match: Match, line: Line) -> None:
    log.args = parse_arguments(match[1])
    if tag := log.args.get("model_tag"):
        log.args.setdefault("model", tag)
    _take(log, log.args)


def _set_config(log: EngineLog, match: Match, line: Line) -> None:
    if not log.config:
        log.config = parse_arguments(match[1])
        _take(log, log.config)
        if device := str(log.config.get("device_config") or ""):
            log.platform = "cpu" if "cpu" in device else "gpu"


def _per_rank(*names: str) -> Apply:
    """A rule whose groups, where they matched, are these facts of a rank."""

    def apply(log: EngineLog, match: Match, line: Line) -> None:
        rank = _rank(log, line)
        for name, text in zip(names, match.groups(), strict=True):
            if text:
                setattr(rank, name, decimal(text))

    return apply


def _profile(*names: str) -> Apply:
    """A rule whose groups are parts of the memory profile, GiB."""

    def apply(log: EngineLog, match: Match, line: Line) -> None:
        log.profile |= {f"{name}_gib": decimal(text) for name, text in zip(names, match.groups(), strict=True)}

    return apply


def _kv_tokens(log: EngineLog, match: Match, line: Line) -> None:
    # Several engines or stages print one line each: what all of them can hold is what counts.
    log.kv_cache_tokens = min(whole(match[2]), log.kv_cache_tokens or sys.maxsize)
    log.platform = log.platform or ("cpu" if match[1] == "CPU" else "gpu")


def _blocks(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu_blocks, log.cpu_blocks = whole(match[1]), whole(match[2])
    log.kv_cache_tokens = log.gpu_blocks * (log.block_size or DEFAULT_BLOCK_SIZE)


def _concurrency(log: EngineLog, match: Match, line: Line) -> None:
    log.max_concurrency = min(decimal(match[2]), log.max_concurrency or math.inf)
    log.max_model_len = log.max_model_len or whole(match[1])


def _throughput(log: EngineLog, match: Match, line: Line) -> None:
    hit = match["hit"]
    log.throughput.append(
        Throughput(
            line.time, whole(match["engine"] or "0"), decimal(match["prompt"]), decimal(match["generation"]),
            whole(match["running"]), whole(match["waiting"]), decimal(match["kv"]), decimal(hit) if hit else None,
        )
    )  # fmt: skip


def _hit_rate(log: EngineLog, match: Match, line: Line) -> None:
    """0.6 to 0.8 say the prefix cache's hit rate on a line of its own."""
    if log.throughput and log.throughput[-1].prefix_hit_percent is None:
        log.throughput[-1] = replace(log.throughput[-1], prefix_hit_percent=decimal(match[1]))


def _ready(log: EngineLog, match: Match, line: Line) -> None:
    log.ready = log.engine_ready = True


def _route(log: EngineLog, match: Match, line: Line) -> None:
    methods = match[2].replace(" ", "")
    _remember(log.routes, f"{methods} {match[1]}")


def _profile_pairs(log: EngineLog, match: Match, line: Line) -> None:
    """0.6.4 and 0.6.5: `Memory profiling results: …, total_gpu_memory=79.11GiB, …, kv_cache_size=…`."""
    found = {name: decimal(value.rstrip(".")) for name, value in re.findall(r"(\w+)=([\d.]+)GiB", match[1])}
    log.profile |= {f"{name}_gib": value for name, value in found.items()}
    if share := re.search(r"gpu_memory_utilization=([\d.]+\d)", match[1]):
        log.gpu_memory_utilization = decimal(share[1])
    if "kv_cache_size" in found:
        _rank(log, line).available_kv_gib = found["kv_cache_size"]


NUMBER, FLOAT = r"([\d,_]+)", r"([\d.]+)"
RULES: tuple[tuple[str, re.Pattern[str], Apply], ...] = tuple(
    (literal, re.compile(pattern), apply)
    for literal, pattern, apply in (
        ("version", r"vLLM API server version (\d[\w.+]*)", _set_version),
        ("version", r"[█▀▄].* version (\d[\w.+]*)", _set_version),
        ("engine (v", r"Initializing an? (?:V\d )?LLM engine \(v(\d[\w.+]*)\)", _set_version),
        ("args: ", r"args: (\{.*|Namespace\(.*)", _set_args),
        ("with config: ", r"engine \(v[^)]*\) with config: (.*)", _set_config),
        ("Resolved architecture", r"Resolved architecture: (\w+)", _set("architecture")),
        ("max model len", r"Using max model len " + NUMBER, _set("max_model_len", whole)),
        ("max_num_batched_tokens=", r"max_num_batched_tokens=(\d+)", _set("max_num_batched_tokens", whole)),
        ("attention backend", r"Using (\w+) attention backend", _set("attention_backend")),
        ("backend.", r"Using ([\w ]+?) backend( on V1 engine)?\.$", _set("attention_backend", keep=True)),
        ("Model Runner", r"Using (V\d) Model Runner", _set("model_runner")),
        ("[workshop] GPUs:", r"\[workshop\] GPUs: \d+ [x×] (.+?), [\d.]+ GiB each", _set("gpu")),
        ("device_name=", r"device_name=([\w-]+)", _set("gpu", lambda name: name.replace("_", " "))),
        ("Checkpoint size", r"Checkpoint size: " + FLOAT + " GiB", _set("checkpoint_gib", decimal)),
        ("Loading weights took", r"Loading weights took " + FLOAT, _set("weights_load_s", decimal)),
        ("oading took", r"Model loading took " + FLOAT + r" Gi?B(?: memory)?(?: and " + FLOAT + " seconds)?",
         _per_rank("weights_gib", "weights_s")),
        ("weights took", r"Loading model weights took " + FLOAT + " GB", _per_rank("weights_gib")),
        ("Available KV", r"Available KV cache memory: " + FLOAT, _per_rank("available_kv_gib")),
        ("for KV cache", r"(?:Explicitly|Auto) set \(" + FLOAT + r"/[\d.]+\) GiB for KV cache",
         _set("requested_kv_gib", decimal)),
        ("for KV cache", r"(?:Explicitly|Auto) set \([\d.]+/" + FLOAT + r"\) GiB for KV cache",
         _profile("total_host_memory")),
        ("VLLM_CPU_KVCACHE_SPACE", r"is not set, using " + FLOAT + " by default", _set("requested_kv_gib", decimal)),
        ("block size to", r"[Ss]etting (?:attention|kv cache) block size to (\d+)", _set("block_size", whole)),
        ("KV cache size", r"(GPU|CPU|[A-Z]+) KV cache size: " + NUMBER + " tokens", _kv_tokens),
        (" blocks: ", r"# \w+ blocks: (\d+), # CPU blocks: (\d+)", _blocks),
        ("Maximum concurrency", r"Maximum concurrency for " + NUMBER + r" tokens per request: " + FLOAT, _concurrency),
        ("Memory profiling results", r"Memory profiling results: (.*)", _profile_pairs),
        # 0.6.6 to 0.8
        ("total_gpu_memory (", r"total_gpu_memory \(" + FLOAT + r"GiB\) x gpu_memory", _profile("total_gpu_memory")),
        ("total_gpu_memory (", r"GiB\) x gpu_memory_utilization \(" + FLOAT,
         _set("gpu_memory_utilization", decimal, keep=True)),
        ("model weights take", r"model weights take " + FLOAT + r"GiB; non_torch_memory takes (-?[\d.]+)GiB; "
         r"PyTorch activation peak memory takes " + FLOAT + r"GiB; the rest of the memory reserved for KV Cache is "
         r"(-?[\d.]+)GiB", _profile("model_weights", "non_torch_memory", "peak_activation", "kv_cache_size")),
        ("model weights take", r"the rest of the memory reserved for KV Cache is (-?[\d.]+)GiB",
         _per_rank("available_kv_gib")),
        # since 0.10, where a limit was set in bytes or the logging is verbose
        ("Free memory on device", r"Free memory on device \(" + FLOAT + "/" + FLOAT + r" GiB\) on startup\. .*Actual "
         r"usage is " + FLOAT + r" GiB .*?" + FLOAT + r" GiB for peak activation, and " + FLOAT,
         _profile("free_at_start", "total_gpu_memory", "consumed", "peak_activation", "cuda_graphs")),
        ("torch.compile took", r"torch\.compile (?:took|takes) " + FLOAT + " s", _per_rank("compile_s")),
        ("Estimated CUDA graph", r"Estimated CUDA graph memory: " + FLOAT, _set("cuda_graph_estimate_gib", decimal)),
        ("CUDA graph pool memory", r"\(actual\), " + FLOAT + r" GiB \(estimated\)",
         _set("cuda_graph_estimate_gib", decimal)),
        ("Graph capturing", r"Graph capturing finished in (\d+) secs(?:, took " + FLOAT + ")?",
         _per_rank("cuda_graph_s", "cuda_graph_gib")),
        ("init engine", r"init engine \(.*\) took " + FLOAT, _set("init_engine_s", decimal)),
        ("init engine", r"init engine \(.*\) (took) ", _set("engine_ready", bool)),
        ("Starting vLLM", r"Starting vLLM (?:API )?server(?: \d+)? on (\S+)", _set("url")),
        ("Route: ", r"Route: (\S+), Methods: (.+)", _route),
        ("Application startup complete", r"Application startup complete", _ready),
        ("Prefix cache hit", r"^Prefix cache hit rate: GPU: " + FLOAT, _hit_rate),
        ("throughput: ", r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg "
         r"generation throughput: (?P<generation>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs.*?"
         r"(?:Waiting|Pending): (?P<waiting>\d+) reqs.*?KV cache usage: (?P<kv>[\d.]+)%"
         r"(?:.*?[Pp]refix cache hit rate: (?:GPU: )?(?P<hit>[\d.]+)%)?", _throughput),
    )
)  # fmt: skip


def apply_line(log: EngineLog, line: Line) -> bool:
    """Take what a line says into the log; True if it said anything that is known."""
    found = False
    for literal, pattern, apply in RULES:
        if literal in line.text and (match := pattern.search(line.text)):
            # A number that was cut, or two that ran into each other, is no reason to stop reading.
            with suppress(ValueError):
                apply(log, match, line)
                found = True
    if line.time:
        log.started = log.started or line.time
        log.last = line.time
    if log.ready and log.ready_s is None and log.started:
        with suppress(ValueError):  # 13-45 99:99:99 is no time
            log.ready_s = seconds_between(log.started, log.last)
    if line.level == "WARNING":
        _remember(log.warnings, line.text)
    return found
