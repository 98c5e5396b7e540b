"""The patterns that find facts in vLLM's log lines, and what they do with them. Pure.

Each rule is (a literal that must occur, a pattern): the literal makes a line that matches nothing cost about two
microseconds. `<name>` in a pattern is a number, or a named group is text, which becomes the fact of that name; a third
part is what else to do with the match. Messages: vLLM 0.6.4 to 0.33, from their sources.
"""

import ast
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.lines import Line

DEFAULT_BLOCK_SIZE = 16  # tokens; vLLM's default on GPUs in every version read here
LOOKED_AT_CHARS = (
    2000  # of a message that is not a list of arguments; vLLM's own have at most some hundred
)
LARGEST = 10**15  # tokens, GiB or seconds: more was not printed by an engine
KNOWN_VERSIONS = ((0, 6), (0, 33))  # the formats that were checked, first and last
OPEN, CLOSE = {*"([{<"}, {*")]}>"}
TOKENS = re.compile(
    r"""'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|[^'"(\[{<)\]}>,]+|.""", re.DOTALL
)  # a quote may be cut

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


KINDS = {"int | None": whole, "float | None": decimal, "bool": bool}
# fact → what makes its value of a text; the types are strings, since facts.py postpones its annotations
CONVERT = {fact.name: KINDS.get(str(fact.type), str) for fact in fields(EngineLog)}
OF_A_RANK = {fact.name for fact in fields(RankFacts)}


def _facts(log: EngineLog, match: Match, line: Line) -> None:
    """Keep what each group found as the fact of its name: of the rank, of the log, or of its memory profile."""
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name in OF_A_RANK:
            setattr(log.ranks.setdefault(line.process, RankFacts()), name, decimal(text))
        elif name in CONVERT:
            setattr(log, name, CONVERT[name](text))
        else:
            log.profile[name] = decimal(text)


def _version(log: EngineLog, match: Match, line: Line) -> None:
    numbers = tuple(whole(part) for part in re.findall(r"\d+", log.version or match[1])[:2])
    log.version = log.version or match[1]
    note = (
        f"vLLM {log.version} is not one of the versions whose log format was checked (0.6 to 0.33)."
    )
    if not KNOWN_VERSIONS[0] <= numbers <= KNOWN_VERSIONS[1] and note not in log.notes:
        log.notes.append(note)


WORDS = ("model", "dtype", "quantization", "kv_cache_dtype")
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs",
         "block_size", "max_seq_len")  # fmt: skip
# that become facts, and what they must be
ARGUMENTS = dict.fromkeys(WORDS, (str,)) | dict.fromkeys(SIZES, (int,))
ARGUMENTS |= {"enforce_eager": (bool,), "gpu_memory_utilization": (float, int)}
OLD_NAMES = {"max_seq_len": "max_model_len"}
UNDECIDED = ("auto", "None")


def _take(log: EngineLog, values: dict[str, Any]) -> None:
    for name, kinds in ARGUMENTS.items():
        value = values.get(name)
        in_range = isinstance(value, str | bool) or (
            isinstance(value, int | float) and 0 < value <= LARGEST
        )
        if type(value) not in kinds or not in_range:
            continue  # None, -1 and "auto" leave it to vLLM, which says later what it took
        if name in ("dtype", "quantization") and value in UNDECIDED:
            continue
        setattr(
            log,
            OLD_NAMES.get(name, name),
            value.removeprefix("torch.") if isinstance(value, str) else value,
        )


def _args(log: EngineLog, match: Match, line: Line) -> None:
    log.args = parse_arguments(match[1])
    if tag := log.args.get("model_tag"):
        log.args.setdefault("model", tag)
    _take(log, log.args)


def _config(log: EngineLog, match: Match, line: Line) -> None:
    if not log.config:
        log.config = parse_arguments(match[1])
        _take(log, log.config)
        if device := str(log.config.get("device_config") or ""):
            log.platform = "cpu" if "cpu" in device else "gpu"


def _gpu(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu = match[1].replace("_", " ")


def _kv_tokens(log: EngineLog, match: Match, line: Line) -> None:
    # Several engines or stages print one line each: what all of them can hold is what counts.
    log.kv_cache_tokens = min(whole(match[2]), log.kv_cache_tokens or sys.maxsize)
    log.platform = log.platform or ("cpu" if match[1] == "CPU" else "gpu")


def _blocks(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu_blocks = whole(match[1])
    log.kv_cache_tokens = log.gpu_blocks * (log.block_size or DEFAULT_BLOCK_SIZE)


def _concurrency(log: EngineLog, match: Match, line: Line) -> None:
    log.max_concurrency = min(decimal(match[2]), log.max_concurrency or math.inf)
    log.max_model_len = log.max_model_len or whole(match[1])


def _share(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu_memory_utilization = log.gpu_memory_utilization or decimal(match[1])


def _throughput(log: EngineLog, match: Match, line: Line) -> None:
    engine, prompt, generation, running, waiting, kv = match.groups()
    log.throughput.append(
        Throughput(
            time=line.time,
            engine=whole(engine or "0"),
            prompt_tokens_per_s=decimal(prompt),
            generation_tokens_per_s=decimal(generation),
            running=whole(running),
            waiting=whole(waiting),
            kv_cache_percent=decimal(kv),
        )
    )


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a rule's pattern; `<name>` is a number, with commas where the fact of that name is a whole one."""

    def group(found: Match) -> str:
        digits = r"[\d,_]+" if CONVERT.get(found[1]) is whole else r"[\d.]+"
        return f"(?P<{found[1]}>{digits})"

    return re.compile(re.sub(r"(?<!P)<(\w+)>", group, text))


RULES: tuple[tuple[str, re.Pattern[str], Apply], ...] = tuple(
    (literal, _pattern(pattern), apply[0] if apply else _facts)
    for literal, pattern, *apply in (
        ("version", r"vLLM API server version (\d[\w.+]*)", _version),
        ("version", r"[█▀▄].* version (\d[\w.+]*)", _version),
        ("engine (v", r"Initializing an? (?:V\d )?LLM engine \(v(\d[\w.+]*)\)", _version),
        ("args: ", r"args: (\{.*|Namespace\(.*)", _args),
        ("with config: ", r"engine \(v[^)]{0,100}\) with config: (.*)", _config),
        ("Resolved architecture", r"Resolved architecture: (?P<architecture>\w+)"),
        ("max model len", "Using max model len <max_model_len>"),
        ("max_num_batched_tokens=", "max_num_batched_tokens=<max_num_batched_tokens>"),
        ("attention backend", r"Using \w+ attention backend"),
        ("backend.", r"Using [\w ]+? backend(?: on V1 engine)?\.$"),
        ("Model Runner", r"Using V\d Model Runner"),
        ("[workshop] GPUs:", r"\[workshop\] GPUs: \d+ [x×] (?P<gpu>.+?), [\d.]+ GiB each"),
        ("device_name=", r"device_name=([\w-]+)", _gpu),
        ("Checkpoint size", "Checkpoint size: <checkpoint_gib> GiB"),
        ("Loading weights took", r"Loading weights took [\d.]+"),
        ("oading took", "Model loading took <weights_gib> Gi?B"),
        ("weights took", "Loading model weights took <weights_gib> GB"),
        ("Available KV", "Available KV cache memory: <available_kv_gib>"),
        ("for KV cache", r"(?:Explicitly|Auto) set \(<requested_kv_gib>/[\d.]+\) GiB for KV cache"),
        ("VLLM_CPU_KVCACHE_SPACE", "is not set, using <requested_kv_gib> by default"),
        ("block size to", r"[Ss]etting (?:attention|kv cache) block size to <block_size>"),
        ("KV cache size", r"(GPU|CPU|[A-Z]+) KV cache size: ([\d,_]+) tokens", _kv_tokens),
        (" blocks: ", r"# \w+ blocks: (\d+), # CPU blocks: \d+", _blocks),
        ("Maximum concurrency", r"Maximum concurrency for ([\d,_]+) tokens per request: ([\d.]+)", _concurrency),
        # 0.6.4 and 0.6.5, where all stands on one line
        ("Memory profiling results", "total_gpu_memory=<total_gpu_memory_gib>GiB"),
        ("Memory profiling results", r"gpu_memory_utilization=(?P<gpu_memory_utilization>[\d.]+\d)"),
        ("Memory profiling results", "kv_cache_size=<available_kv_gib>GiB"),
        # 0.6.6 to 0.8
        ("total_gpu_memory (", r"total_gpu_memory \(<total_gpu_memory_gib>GiB\) x gpu_memory"),
        ("total_gpu_memory (", r"GiB\) x gpu_memory_utilization \(([\d.]+)", _share),
        ("model weights take", r"the rest of the memory reserved for KV Cache is (?P<available_kv_gib>-?[\d.]+)GiB"),
        # since 0.10, where a limit was set in bytes or the logging is verbose
        ("Free memory on device", r"Free memory on device \([\d.]+/<total_gpu_memory_gib> GiB\) on startup\. .*Actual "),
        ("torch.compile took", r"torch\.compile (?:took|takes) [\d.]+ s"),
        ("Estimated CUDA graph", "Estimated CUDA graph memory: <cuda_graph_estimate_gib>"),
        ("CUDA graph pool memory", r"\(actual\), <cuda_graph_estimate_gib> GiB \(estimated\)"),
        ("Graph capturing", r"Graph capturing finished in \d+ secs(?:, took <cuda_graph_gib>)?"),
        ("init engine", r"init engine \(.*\) (?P<engine_ready>took) "),
        ("Starting vLLM", r"Starting vLLM (?:API )?server(?: \d+)? on \S+"),
        ("Route: ", r"Route: \S+, Methods: .+"),
        ("Application startup complete", "(?P<engine_ready>Application startup) (?P<ready>complete)"),
        ("Prefix cache hit", r"^Prefix cache hit rate: GPU: [\d.]+"),
        ("throughput: ", r"(?:Engine (\d+): )?Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: "
         r"([\d.]+) tokens/s, Running: (\d+) reqs.{0,100}?(?:Waiting|Pending): (\d+) reqs.{0,200}?KV cache usage: ([\d.]+)%",
         _throughput),
    )
)  # fmt: skip


WHOLE_LINE = (_args, _config)  # whose message is a list of all arguments; the others are short


def apply_line(log: EngineLog, line: Line) -> bool:
    """Take what a line says into the log; True if it said anything that is known."""
    found = False
    front = line.text[:LOOKED_AT_CHARS]
    for literal, pattern, apply in RULES:
        text = line.text if apply in WHOLE_LINE else front
        if literal in text and (match := pattern.search(text)):
            # A number that was cut, or two that ran into each other, is no reason to stop reading.
            with suppress(ValueError):
                apply(log, match, line)
                found = True
    log.last = line.time or log.last
    return found


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse `{'a': 1, …}`, `Namespace(a=1, …)` or `a=1, b='x', …` into a dict.

    Values that Python can read become Python values; others (`torch.bfloat16`, `<Enum: 3>`) stay strings.
    A line that was cut gives what could be read. Duplicate keys: the last one.
    """
    text = text.strip()
    if text.startswith("Namespace("):
        text = text[len("Namespace(") :].removesuffix(")")
    separator = "="
    if text.startswith("{"):
        text, separator = text[1:].removesuffix("}"), ":"
    result = {}
    for part in _parts(text):
        key, _, value = part.partition(separator)
        if (key := key.strip().strip("'\"")) and value.strip():
            result[key] = _value(value.strip())
    return result


def _value(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text  # also sets, bytes and 1e999, which no argument of vLLM is
    return value


def _parts(text: str) -> Iterator[str]:
    """Split at commas that stand outside quotes and brackets."""
    depth = start = 0
    for token in TOKENS.finditer(text):
        depth = max(0, depth + (token[0] in OPEN) - (token[0] in CLOSE))
        if token[0] == "," and depth == 0:
            yield text[start : token.start()]
            start = token.end()
    yield text[start:]
