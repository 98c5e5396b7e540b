"""Print a plan, the machines that hold a model, or the catalog's names, as text or JSON."""

import json
import textwrap
from typing import Any

from inference_planner import catalog
from inference_planner.answer.machines import Offer
from inference_planner.answer.plan_result import Plan
from inference_planner.catalog.gpus import MIB
from inference_planner.errors import plain
from inference_planner.ground.doubts import doubts
from inference_planner.speed.roofline import QUESTION_TOKENS

BAR_CELLS = 56
WIDEST = 110  # columns of a paragraph
STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}


def columns() -> int:
    """Return the width of the terminal, at most WIDEST."""
    import shutil

    return min(shutil.get_terminal_size().columns, WIDEST)


def names(kind: str, as_json: bool = False) -> str:
    """Return the names of the catalog's "models" or "gpus", one per line or as a JSON list."""
    listed = catalog.list_models() if kind == "models" else catalog.list_gpus()
    if as_json:
        return json.dumps(listed, indent=2)
    return "\n".join(listed)


def plan_json(plan: Plan) -> str:
    """Return a plan as JSON."""
    return json.dumps(plan.to_dict(), indent=2, ensure_ascii=False)


def plan_text(plan: Plan, width: int = WIDEST, explain: bool = False) -> str:
    """Return a plan as text with ANSI colors, for a terminal.

    Args:
        width: columns of a paragraph.
        explain: add the source of every overhead and of every part of a decoding step.
    """
    lines = ["", _title(plan), *_verdict(plan, width), "", *_memory_bar(plan)]
    lines += _paragraphs("Why", " •", plan.reasons, width)
    title = "Nearest"
    if plan.fits:
        title = "For more"
    lines += _paragraphs(title, " →", plan.advice, width)
    if plan.starts:
        run = ink("Run", "bold")
        if plan.nodes > 1:
            run += " on every node, with --headless on all but one"
        lines += ["", run, "  " + ink(plain(plan.command), "cyan")]
    if explain:
        lines += _sources(plan, width)
    return "\n".join([*lines, ""])


def machines_json(offers: list[Offer]) -> str:
    """Return the machines and whether each holds the model, as JSON."""
    rows: list[dict[str, Any]] = []
    for offer in offers:
        command = ""
        if offer.plan and offer.fits:
            command = offer.plan.command
        verdict = {"fits": offer.fits, "why": offer.why, "command": command}
        rows.append({**vars(offer.machine), **verdict})
    return json.dumps(rows, indent=1)


def machines_text(offers: list[Offer]) -> str:
    """Return the machines that hold a model as a table, and below it why the others do not."""
    rows = [("", "machine", "GPUs", "vCPU", "memory", "local disk", "requests", "tokens/s")]
    length = 0  # of a request
    for offer in offers:
        machine, plan = offer.machine, offer.plan
        if not plan or not offer.fits:
            continue
        length = length or plan.deployment.settings.max_model_len
        rows.append(
            (
                " ✓",
                f"{machine.name} {machine.provider}",
                f"{plan.gpus} of {machine.gpus} × {machine.gpu}",
                str(machine.vcpus),
                f"{machine.memory_gib:,} GiB",
                f"{machine.local_disk_gb / 1000:.1f} TB",
                f"{plan.max_concurrency:.1f}",
                f"{plan.single_stream_tokens_per_s:.0f}",
            )
        )
    lines = [""]
    if len(rows) > 1:
        head, *fitting = grid(rows, 0, gap=2)
        lines.append(ink(head, "bold"))
        lines += [line.replace("✓", ink("✓", "green"), 1) for line in fitting]
        units = (
            f"  requests: of {length:,} tokens at once; tokens/s: of one "
            "request alone; the OS disk is not included."
        )
        lines += ["", ink(units, "dim"), ""]
    for offer in offers:
        if not offer.fits:
            machine = offer.machine
            title = f"{machine.name} {machine.provider}, {machine.gpus} × {machine.gpu}"
            lines.append(f" {ink('✗', 'red')}  {title}: {plain(offer.why)}")
    return "\n".join([*lines, ""])


def ink(text: str, style: str) -> str:
    """Return text in a style of an ANSI terminal."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def grid(rows: list[tuple[str, ...]], width: int, gap: int = 1) -> list[str]:
    """Lay rows out in columns as wide as their widest cell; the last is wrapped at `width`."""
    widths = [max(map(len, cells)) + gap for cells in zip(*rows, strict=True)][:-1]
    lines: list[str] = []
    for *cells, last in rows:
        start = "".join(f"{cell:{size}}" for cell, size in zip(cells, widths, strict=True))
        lines += textwrap.wrap(
            last,
            max(width, len(start) + 20),
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )
    return lines


def _title(plan: Plan) -> str:
    where = f"{plan.gpus} × {plan.gpu}"
    if plan.nodes > 1:
        where += f" on {plan.nodes} nodes"
    split = (
        f"tensor parallel {plan.tensor_parallel_size} × pipeline "
        f"parallel {plan.pipeline_parallel_size}"
    )
    if plan.data_parallel_size > 1:
        split += f" × data parallel {plan.data_parallel_size}"
    if plan.deployment.ep:
        split += ", expert parallel"
    version = ink(f"vLLM {plan.deployment.settings.vllm_version}", "dim")
    return f"{ink(plain(plan.model), 'bold')} on {ink(where, 'bold')}   {split}   {version}"


def _verdict(plan: Plan, width: int) -> list[str]:
    """Return whether the plan fits, and its most important figures."""
    if not plan.fit.holds_a_request:
        verdict = "✗ does not fit"
        if plan.intervals["kv_cache_tokens"].high:
            verdict += f"; at the high end of the range it would ({plan.basis})"
        return [ink(verdict, "red")]
    if plan.refusals:
        reasons = "; ".join(plain(finding.what) for finding in plan.refusals)
        refusal = f"✗ fits, but vLLM would refuse to start: {reasons}"
        lines = textwrap.wrap(refusal, width, break_on_hyphens=False)
        return [ink(line, "red") for line in lines]
    if not plan.command:
        doubt = f"? would fit by its sizes, but {plain(plan.deployment.refused)}"
        lines = textwrap.wrap(doubt, width, break_on_hyphens=False)
        return [ink(line, "yellow") for line in lines]
    if plan.deployment.model.pooling:
        return _pooling_verdict(plan, width)
    figures = [
        f"✓ fits  {plan.kv_cache_tokens:,} tokens of KV cache ({plus_minus(plan)})",
        f"{plan.max_concurrency:.2f} requests of {plan.deployment.settings.max_model_len:,} tokens at once",
    ]
    if plan.decode:
        speed = plan.intervals["single_stream_tokens_per_s"]
        figures.append(
            f"about {plan.single_stream_tokens_per_s:.0f} tokens/s for one request "
            f"({speed.low:.0f} to {speed.high:.0f})"
        )
        figures.append(_first_tokens(plan.learners_at_once))
    else:
        figures.append("speed unknown")
    first, *more = textwrap.wrap(" · ".join(figures), width, break_on_hyphens=False)
    lines = [first.replace("✓ fits", ink("✓ fits", "green")), *more]
    ground = f"  {plan.basis}: nine of ten measured figures lie within these ranges"
    lines.append(ink(ground, "dim"))
    if plan.may_not_start:
        doubt = f"! It may not start: {plan.start_doubt}"
        lines += [ink(line, "yellow") for line in textwrap.wrap(doubt, width)]
    return lines


def plus_minus(plan: Plan) -> str:
    """Return half of the interval of the KV-cache tokens in words: "± 1.2 %"."""
    if not plan.kv_cache_tokens:
        return "± 0 %"
    tokens = plan.intervals["kv_cache_tokens"]
    half = 100 * (tokens.high - tokens.low) / 2 / plan.kv_cache_tokens
    if half < 10:
        return f"± {half:.1f} %"
    return f"± {half:.0f} %"


def _pooling_verdict(plan: Plan, width: int) -> list[str]:
    """Return that a model loads which generates no text, and what vLLM does with it."""
    what = {"scores": "scores (ranks or classes)", "vectors": "vectors (embeddings)"}[
        plan.deployment.model.pooling
    ]
    sentence = (
        f"✓ fits  a pooling model: vLLM runs it with --runner pooling and computes {what}. "
        "It generates no tokens, so there is no decoding speed"
    )
    if plan.fit.has_cache:
        sentence += f"; its prompts share {plan.kv_cache_tokens:,} tokens of KV cache."
    else:
        sentence += ", and its attention looks both ways, so vLLM keeps no KV cache."
    first, *more = textwrap.wrap(sentence, width, break_on_hyphens=False)
    return [first.replace("✓ fits", ink("✓ fits", "green")), *more]


def _first_tokens(requests: int) -> str:
    load = f"{requests:,} simultaneous requests of {QUESTION_TOKENS} tokens"
    if requests == 1:
        load = f"1 request of {QUESTION_TOKENS} tokens"
    return f"time to first token below 5 s for {load}"


def _memory_bar(plan: Plan) -> list[str]:
    """Draw the memory of one GPU and its parts; `┃` marks its end if the model needs more."""
    gpu_gib = plan.deployment.gpu.engine_gib
    used = plan.weights_gib_per_gpu + plan.overhead_gib_per_gpu
    left = max(0.0, plan.requested_gib_per_gpu - used)
    if plan.deployment.settings.kv_cache_memory_bytes:
        left = plan.available_kv_gib_per_gpu
    rest = "free"
    if plan.fit.has_cache:
        rest = "KV cache"
    unused = gpu_gib - plan.requested_gib_per_gpu
    if plan.deployment.settings.kv_cache_memory_bytes:
        unused = max(0.0, gpu_gib - used - left)
    parts = [
        ("weights", plan.weights_gib_per_gpu, "█", "blue"),
        ("overhead", plan.overhead_gib_per_gpu, "▓", "yellow"),
        (rest, left, "▒", "green"),
        ("not used by vLLM", unused, "░", "dim"),
    ]
    scale = BAR_CELLS / max(gpu_gib, used)  # cells per GiB
    bar = "  "
    legend = "  "
    for name, size, cell, style in parts:
        cells = round(scale * size) or int(size > 0.2)
        bar += ink(cell * cells, style)
        legend += f"{ink(cell, style)} {name} {size:.1f}   "
    memory = f"{gpu_gib:.1f} GiB"
    if used > gpu_gib:
        bar += ink(f" ┃ a GPU has {memory}", "red")
    else:
        bar += ink(f" {memory} a GPU", "dim")
    return [bar, legend + ink("GiB", "dim")]


def _paragraphs(title: str, mark: str, sentences: list[str], width: int) -> list[str]:
    if not sentences:
        return []
    rows: list[tuple[str, ...]] = [(mark, plain(sentence)) for sentence in sentences]
    return ["", ink(title, "bold"), *grid(rows, width)]


def _sources(plan: Plan, width: int) -> list[str]:
    """Return the source of each overhead and of each part of a decoding step."""
    rows: list[tuple[str, ...]] = []
    for overhead in plan.overheads:
        size = f"{overhead.bytes / MIB:7,.0f} MiB"
        rows.append((f" {overhead.name}", size, f"{overhead.reason}; source: {overhead.source}"))
    lines = ["", ink("Overheads of one GPU", "bold"), *grid(rows, width, gap=2)]
    lines += ["", ink("How far a GPU's memory and a step's time may be off", "bold")]
    half = plan.spread
    lines.append(
        f" ± {half.room_gib:.2f} GiB, ± {100 * half.time_share:.0f} % of the time: {plan.basis}"
    )
    for doubt in doubts(plan.deployment, plan.ground):
        lines.append(ink(f"   {doubt.name}: {doubt.halves}", "dim"))
    rows = []
    for term in plan.decode:
        doubt = f"{term.source}; may be off by {term.uncertainty}"
        rows.append((f" {term.name}", f"{term.ms:7.3f} ms", doubt))
    if rows:
        lines += ["", ink("One decoding step, one request", "bold"), *grid(rows, width, gap=2)]
    return lines
