"""The patterns that find facts in vLLM's log lines, and what they do with them. Pure.

Each rule is (a literal that must occur, a pattern): the literal makes a line that matches nothing
cost about two microseconds. `<name>` in a pattern is a number, or a named group is text, which
becomes the fact of that name; a third part is what else to do with the match. Messages: vLLM 0.10
to 0.33, from their sources.
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

from inference_planner.releases.moe_backends import BACKENDS
from inference_planner.releases.versions import is_between, older

from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.lines import Line

# of a message that is not a list of arguments; vLLM's own have at most some hundred
LOOKED_AT_CHARS = 2000
LARGEST = 10**15  # tokens, GiB or seconds: more was not printed by an engine
CHECKED_RELEASES = ("0.10", "0.33")  # whose formats were checked, first and last
OPEN = {*"([{<"}
CLOSE = {*")]}>"}
# a quote may be cut
TOKENS = re.compile(r"""'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|[^'"(\[{<)\]}>,]+|.""", re.DOTALL)

Match = re.Match[str]
Apply = Callable[[EngineLog, Match, Line], None]


def decimal(text: str) -> float:
    """Return a number as a log prints it. Raises ValueError: it was cut, or two ran together."""
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
# fact → what makes its value of a text; the types are strings, since facts.py postpones its
# annotations
CONVERT = {fact.name: KINDS.get(str(fact.type), str) for fact in fields(EngineLog)}
OF_A_RANK = {fact.name for fact in fields(RankFacts)}
OF_THE_PROFILE = ("total_gpu_memory_gib", "free_gpu_memory_gib")


def _facts(log: EngineLog, match: Match, line: Line) -> None:
    """Set the fact of each group's name: of the rank, of the log, or of its memory profile."""
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
    if match[1].startswith("0.1.dev"):  # a build from a clone without tags: no release
        return
    version = log.version or match[1]
    for number in re.findall(r"\d+", version)[:2]:
        whole(number)  # raises ValueError for a line that was cut
    log.version = version
    first, last = CHECKED_RELEASES
    note = f"vLLM {version} is not one of the versions whose log format was checked ({first} to {last})."
    if not is_between(version, first, last) and note not in log.notes:
        log.notes.append(note)


WORDS = ("model", "dtype", "quantization", "kv_cache_dtype", "moe_backend")
SIZES = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len"),
    *("max_num_batched_tokens", "max_num_seqs", "block_size", "max_seq_len"),
)  # fmt: skip
# that become facts, and what they must be
ARGUMENTS = dict.fromkeys(WORDS, (str,)) | dict.fromkeys(SIZES, (int,))
ARGUMENTS |= dict.fromkeys(
    ("enforce_eager", "enable_expert_parallel", "enable_prefix_caching"), (bool,)
)
ARGUMENTS |= {"gpu_memory_utilization": (float, int)}
OLD_NAMES = {"max_seq_len": "max_model_len"}
UNDECIDED = ("auto", "None")


def _take(log: EngineLog, values: dict[str, Any]) -> None:
    """Set the facts of a log that arguments decide.

    None, -1 and "auto" leave a setting to vLLM, which says later what it took.
    """
    for name, kinds in ARGUMENTS.items():
        value: Any = values.get(name)
        if type(value) not in kinds:
            continue
        if isinstance(value, str):
            if name in ("dtype", "quantization", "moe_backend") and value in UNDECIDED:
                continue
            value = value.removeprefix("torch.")
        elif not isinstance(value, bool) and not 0 < value <= LARGEST:
            continue
        setattr(log, OLD_NAMES.get(name, name), value)


def _args(log: EngineLog, match: Match, line: Line) -> None:
    log.args = parse_arguments(match[1])
    model_tag = log.args.get("model_tag")
    if model_tag:
        log.args.setdefault("model", model_tag)
    _take(log, log.args)


def _config(log: EngineLog, match: Match, line: Line) -> None:
    if log.config:
        return
    log.config = parse_arguments(match[1])
    settings = dict(log.config)
    kernels = re.search(r"moe_backend='([a-z]\w{1,40})'", match[1])
    if kernels:
        settings["moe_backend"] = kernels[1]
    _take(log, settings)
    device = str(log.config.get("device_config") or "")
    if device:
        log.platform = "cpu" if "cpu" in device else "gpu"


def _gpu(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu = log.gpu or match[1].replace("_", " ").strip()


def _listed_gpu(log: EngineLog, match: Match, line: Line) -> None:
    if "[workshop]" not in line.text:  # our own list has its own rule, and may be of several kinds
        _gpu(log, match, line)


def _attention_backend(log: EngineLog, match: Match, line: Line) -> None:
    if match[1] not in log.attention_backends:
        log.attention_backends.append(match[1])
    for name in re.findall(r"\b[A-Z][A-Z\d_]+\b", match[2] or ""):
        if name not in log.possible_attention_backends:
            log.possible_attention_backends.append(name)


def _moe_backend(log: EngineLog, match: Match, line: Line) -> None:
    """Set which kernels of experts vLLM chose, which replaces the argument.

    Since 0.14 vLLM prints its own name of them, such as FLASHINFER_TRTLLM_MXFP4_BF16; before,
    "Marlin" and the like.
    """
    name = re.sub(r"[\s-]+", "_", match[1].strip().lower())
    name = name.removeprefix("rocm_").replace("deepgemm", "deep_gemm")
    for prefix in ("batched_", "vllm_"):
        if name != "batched_triton":
            name = name.removeprefix(prefix)
    backends = []
    for backend in BACKENDS:
        if name == backend or name.startswith(f"{backend}_"):
            backends.append(backend)
    if backends:
        log.moe_backend = max(backends, key=len)


def _architecture(log: EngineLog, match: Match, line: Line) -> None:
    log.architecture = log.architecture or match[1]  # a draft model's comes after the model's own


def _model(log: EngineLog, match: Match, line: Line) -> None:
    log.model = log.model or match[1]  # a draft model's comes after the model's own


def _checkpoint(log: EngineLog, match: Match, line: Line) -> None:
    log.checkpoint_gib = log.checkpoint_gib or decimal(match[1])  # a draft's comes second


def _length(log: EngineLog, match: Match, line: Line) -> None:
    log.max_model_len = log.max_model_len or whole(match[1])


def _world(log: EngineLog, match: Match, line: Line) -> None:
    """Set the size of the largest group, and the highest pipeline and tensor rank."""
    world, pipeline_rank, tensor_rank = map(whole, match.groups())
    log.world_size = max(world, log.world_size or 0)
    highest = log.profile
    highest["highest_pipeline_rank"] = max(pipeline_rank, highest.get("highest_pipeline_rank", 0))
    highest["highest_tensor_rank"] = max(tensor_rank, highest.get("highest_tensor_rank", 0))


def _mamba(log: EngineLog, match: Match, line: Line) -> None:
    log.max_num_seqs = log.max_num_seqs or whole(match[1])
    log.mamba_blocks = whole(match[2])


def _kv_in_use(log: EngineLog, match: Match, line: Line) -> None:
    """Keep the size of a rank's KV cache where the line that announces it is not in the log."""
    rank = log.ranks.setdefault(line.process, RankFacts())
    if rank.available_kv_gib is None:
        size = decimal(match[1])
        if match[2] == "bytes":
            size = round(size / 2**30, 2)
        rank.available_kv_gib = size


def _kv_tokens(log: EngineLog, match: Match, line: Line) -> None:
    # Several engines or stages print one line each: what all of them can hold is what counts.
    log.kv_cache_tokens = min(whole(match[2]), log.kv_cache_tokens or sys.maxsize)
    if not log.platform:
        log.platform = "cpu" if match[1] == "CPU" else "gpu"


def _up_to(release: str) -> Apply:
    """Return a rule's third part for a form of lines that no release after `release` prints."""

    def keep(log: EngineLog, match: Match, line: Line) -> None:
        log.newest_release = older(release, log.newest_release or release)

    return keep


def _concurrency(log: EngineLog, match: Match, line: Line) -> None:
    log.max_concurrency = min(decimal(match[2]), log.max_concurrency or math.inf)
    log.max_model_len = log.max_model_len or whole(match[1])


def _share(log: EngineLog, match: Match, line: Line) -> None:
    log.gpu_memory_utilization = log.gpu_memory_utilization or decimal(match[1])


def _throughput(log: EngineLog, match: Match, line: Line) -> None:
    engine, prompt, generation, running, waiting, kv = match.groups()
    log.engine_ready = log.ready = True  # only a server that has started says so
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
    """Compile a rule's pattern. `<name>` is a number, with commas if the fact is a whole one."""

    def group(match: Match) -> str:
        digits = r"[\d.]+"
        if CONVERT.get(match[1]) is whole:
            digits = r"[\d,_]+"
        elif match[1] == "available_kv_gib":  # less than 0 if weights and overhead took more
            digits = r"-?[\d.]+"
        return f"(?P<{match[1]}>{digits})"

    return re.compile(re.sub(r"(?<!P)<(\w+)>", group, text))


# (literal, pattern), or (literal, pattern, what to do with the match)
Row = tuple[str, str] | tuple[str, str, Apply]
ROWS: tuple[Row, ...] = (
    ("version", r"vLLM API server version (\d[\w.+]*)", _version),
    # the logo's line, also where its blocks were lost in another code page
    ("version", r"^\s*[^\x20-\x3e@-\x7e].{0,200}? version (\d[\w.+]*)", _version),
    ("version", r"^ {0,9}version (\d[\w.+]*)$", _version),  # the logo's line without its blocks
    ("engine (v", r"Initializing an? (?:V\d )?LLM engine \(v(\d[\w.+]*)\)", _version),
    ("LLM engine", r"Initializing an? (?P<engine>V\d) LLM engine"),
    ("args: ", r"args: (\{.*|Namespace\(.*)", _args),
    ("with config: ", r"engine(?: \(v[^)]{0,100}\))? with config: (.*)", _config),
    ("Resolved architecture", r"Resolved architecture: (\w+)", _architecture),
    ("max model len", r"Using max model len ([\d,_]+)", _length),
    ("Auto-fit max_model_len", "reduced from [\\d,]+ to <max_model_len> to fit"),
    ("in world size", r"rank \d+ in world size (\d+) is assigned as DP rank \d+, PP rank (\d+), "
     r"(?:PCP rank \d+, )?"
     r"TP rank (\d+)", _world),
    ("max_num_batched_tokens=", "max_num_batched_tokens=<max_num_batched_tokens>"),
    ("to load model ", r"Starting to load model ([^\s'\"]{1,500}?)(?:\.\.\.|$)", _model),
    ("MoE backend", r"Using '?([\w ]{1,60}?)'? "
     r"(?:Mxfp4|MXFP4|Unquantized|Fp8|FP8|NvFp4|NVFP4|Int8|WNA16|MxFp8) MoE backend",
     _moe_backend),
    (" backend", r"Using (\w{1,30}) backend for \w{1,12} MoE", _moe_backend),
    (" backend", r"Using (Marlin|Triton|CUTLASS) backend$", _moe_backend),  # of MXFP4, up to 0.13
    # AttentionBackendEnum: 0.12 to 0.15
    ("attention backend", r"Using (?:AttentionBackendEnum\.)?([A-Z]\w{1,40}) attention backend"
     r"(?: out of potential backends: [\[(]([^\])]{0,500})[\])])?", _attention_backend),
    ("backend.", r"Using [\w ]+? backend(?: on V1 engine)?\.$"),
    ("Model Runner", r"Using V\d Model Runner"),
    ("[workshop] GPUs:", r"\[workshop\] GPUs: \d+ [x×] (?P<gpu>.+?), [\d.]+ GiB each"),
    ("device_name=", r"device_name=([\w-]+)", _gpu),
    ("device_name=", r"device_name=['\"]([\w -]{1,80})['\"]", _gpu),
    # nvidia-smi, torch and vLLM's collect_env
    ("NVIDIA ", r"(NVIDIA (?:(?:GeForce|Tesla|Quadro|TITAN|Graphics) )?(?:[RG]TX )?(?:PRO )?"
     r"[A-Z]{0,3}\d[\w-]{0,30}"
     r"(?: (?!GPU|on\b|for\b|with\b|and\b|has\b|is\b)[\w-]{1,20}){0,5})", _listed_gpu),
    ("AMD Instinct", r"(AMD Instinct MI\d{2,3}\w{0,2})", _gpu),
    ("Checkpoint size", r"Checkpoint size: ([\d.]+) GiB", _checkpoint),
    ("Loading weights took", r"Loading weights took [\d.]+"),
    ("oading took", "Model loading took <weights_gib> Gi?B"),
    ("weights took", "Loading model weights took <weights_gib> GB"),  # of vLLM Ascend as well
    # Forms of lines that date a log. The first five are of the V0 engine or of releases before
    # 0.10. Public logs have four decimals of the weights in 0.10.2, and two in 0.19.2.
    ("LLM engine with", "Initializing an LLM engine with config: ", _up_to("0.9")),
    ("oading took", r"Model loading took [\d.]+ GB and", _up_to("0.9")),
    ("model weights take", r"model weights take +[\d.]+GiB", _up_to("0.9")),
    ("can be stored", r"tokens that can be stored in KV cache \([\d,]+\)", _up_to("0.9")),
    (" blocks: ", r"# \w+ blocks: \d+", _up_to("0.9")),
    ("oading took", r"Model loading took \d+\.\d{4} GiB and", _up_to("0.18")),
    ("Available KV", "Available KV cache memory: <available_kv_gib>"),
    ("for KV cache", r"(?:Explicitly|Auto) set \(<requested_kv_gib>/[\d.]+\) GiB for KV cache"),
    ("VLLM_CPU_KVCACHE_SPACE", "is not set, using <requested_kv_gib> by default"),
    ("block size to", r"[Ss]etting (?:attention|kv cache) block size to <block_size>"),
    ("KV cache size", r"(GPU|CPU|[A-Z]+) KV cache size: ([\d,_]+) tokens", _kv_tokens),
    ("Maximum concurrency",
     r"Maximum concurrency for ([\d,_]+) tokens per request: ([\d.]+)", _concurrency),
    ("estimated maximum model length",
     "estimated maximum model length is <estimated_max_model_len>"),
    ("KV cache is needed", r"\(?<needed_kv_gib> ?GiB KV cache is needed"),
    ("Mamba cache blocks",
     r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)", _mamba),
    # since 0.10: with every start, or with a limit in bytes or verbose logging; and in errors
    ("Free memory on device", r"Free memory on device(?: \w{1,20}(?::\d{1,4})?)? "
     r"\(<free_gpu_memory_gib>/<total_gpu_memory_gib> GiB\)"),
    ("Desired GPU memory", r"Desired GPU memory utilization is \(([\d.]+), [\d.]+ GiB\)", _share),
    ("Actual usage is", r"Actual usage is [\d.]+ GiB for weights?, "
     r".{0,200}?<non_torch_gib> GiB for non-torch memory"),
    ("Actual usage is", "Actual usage is <consumed_gib> GiB for consumed memory"),
    ("Actual usage is", r"Actual usage is .{0,100}?<peak_activation_gib> GiB for peak activation"),
    ("kv cache memory in use", r"Current kv cache memory in use is ([\d.]+) (GiB|bytes)", _kv_in_use),
    ("torch.compile took", r"torch\.compile (?:took|takes) [\d.]+ s"),
    ("Estimated CUDA graph", "Estimated CUDA graph memory: <cuda_graph_estimate_gib>"),
    ("CUDA graph pool memory", r"\(actual\), <cuda_graph_estimate_gib> GiB \(estimated\)"),
    ("Graph capturing", r"Graph capturing finished in \d+ secs(?:, took <cuda_graph_gib>)?"),
    ("init engine", r"init engine \(.*\) (?P<engine_ready>took) "),
    ("Starting vLLM", r"Starting vLLM (?:API )?server(?: \d+)? on \S+"),
    ("Route: ", r"Route: \S+, Methods: .+"),
    ("Application startup complete", "(?P<engine_ready>Application startup) (?P<ready>complete)"),
    ("throughput: ", r"(?:Engine (\d+): )?Avg prompt throughput: ([\d.]+) tokens/s, "
     r"Avg generation throughput: "
     r"([\d.]+) tokens/s, Running: (\d+) reqs.{0,100}?"
     r"Waiting: (\d+) reqs.{0,200}?"
     r"KV cache usage: ([\d.]+)%",
     _throughput),
)  # fmt: skip


def _rule(row: Row) -> tuple[str, re.Pattern[str], Apply]:
    """Return a row with its pattern compiled. Raises KeyError: a group's name is that of no fact."""
    literal, pattern = row[:2]
    compiled = _pattern(pattern)
    for name in compiled.groupindex:
        if name not in {*OF_A_RANK, *CONVERT, *OF_THE_PROFILE}:
            raise KeyError(f"{name}, in the pattern of {literal!r}: facts.py has no such fact")
    return literal, compiled, row[2] if len(row) > 2 else _facts


RULES = tuple(map(_rule, ROWS))
WHOLE_LINE = (_args, _config)  # whose message is a list of all arguments; the others are short


def apply_line(log: EngineLog, line: Line) -> bool:
    """Set the facts of a line in the log; return True if it had any."""
    has_facts = False
    front = line.text[:LOOKED_AT_CHARS]
    for literal, pattern, apply in RULES:
        text = line.text if apply in WHOLE_LINE else front
        if literal not in text:
            continue
        match = pattern.search(text)
        if match:
            # A number that was cut, or two that ran into each other, is no reason to stop reading.
            with suppress(ValueError):
                apply(log, match, line)
                has_facts = True
    log.last = line.time or log.last
    return has_facts


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse `{'a': 1, …}`, `Namespace(a=1, …)` or `a=1, b='x', …` into a dict.

    Values that Python can read become Python values; others (`torch.bfloat16`, `<Enum: 3>`) stay
    strings.
    A line that was cut gives what could be read. Duplicate keys: the last one.
    """
    text = text.strip()
    if text.startswith("Namespace("):
        text = text[len("Namespace(") :].removesuffix(")")
    separator = "="
    if text.startswith("{"):
        text = text[1:].removesuffix("}")
        separator = ":"
    result = {}
    for part in _parts(text):
        key, _, value = part.partition(separator)
        key = key.strip().strip("'\"")
        value = value.strip()
        if key and value:
            result[key] = _value(value)
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
