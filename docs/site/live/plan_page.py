"""The answer of the planner's page: what its form says goes in, HTML of the plan comes out.

It runs in the page's Python, beside `inference_planner` and the standard library alone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

from inference_planner.answer import report
from inference_planner.answer.parallelism import plan
from inference_planner.answer.plan_result import Plan
from inference_planner.arguments import tokens
from inference_planner.errors import BadInput, PlannerError
from inference_planner.request import SETTINGS

PASTED = Path("/models")
FLAG = re.compile(r"--\w[\w-]*")
# kind of a setting -> how its text is read; 8k and 8K are numbers of tokens
KINDS: dict[str, Callable[[str], object]] = {
    "bool": lambda text: text == "yes",
    "int": tokens,
    "float": float,
}


def answer(form: str) -> str:
    """Return the HTML of the plan, or of what is wrong.

    Args:
        form: a JSON object of texts: `model`, `gpu`, `config` (a config.json that is pasted, in the place of the
            model), and settings of `PlanRequest`. What is left empty is left out.
    """
    fields = json.loads(form)
    try:
        model = fields["model"]
        if fields.get("config"):
            model = str(folder_of(fields["config"]))
        return picture(plan(model, fields["gpu"], **settings(fields)))
    except PlannerError as error:
        return verdict("bad", f"✗ {error.message}", error.remedy)
    except ValueError as error:  # of a number
        return verdict("bad", f"✗ {error}")


def settings(fields: dict[str, str]) -> dict[str, object]:
    """Return the settings of a form as `plan` takes them. Raises ValueError: one is not a number."""
    result: dict[str, object] = {}
    for setting in SETTINGS:
        text = fields.get(setting.name)
        if text:
            kind = str(setting.type).removesuffix(" | None")
            result[setting.name] = KINDS.get(kind, str)(text)
    return result


def folder_of(config: str) -> Path:
    """Write a pasted config.json where a model's folder would be; return the folder.

    Raises:
        BadInput: it is not a JSON object.
    """
    remedy = "Paste the whole config.json of a model, from { to }."
    try:
        values = json.loads(config)
    except ValueError as error:
        raise BadInput(f"The config.json is not JSON ({error}).", remedy) from None
    if not isinstance(values, dict):
        raise BadInput("The config.json has no object.", remedy)
    path = str(values.get("_name_or_path") or values.get("model_type") or "")
    last = path.rstrip("/").rsplit("/", 1)[-1]
    name = "".join(c for c in last if c.isalnum() or c in "-_.").strip(".")[:60]
    folder = PASTED / (name or "model")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    return folder


def picture(result: Plan) -> str:
    """Draw a plan: the verdict, the memory of a GPU, the figures, the command, and why."""
    command = ""
    if result.starts:
        nodes = " on every node, with --headless on all but one" if result.nodes > 1 else ""
        command = f"<h2>Run{nodes}</h2><pre>{with_flags(result.command)}</pre>"
    advice = "For more" if result.fits else "What would help"
    return "".join(
        (
            head(result),
            memory(result),
            figures(result) if result.fit.holds_a_request else "",
            command,
            sentences("Why", result.reasons),
            sentences(advice, result.advice),
        )
    )


def head(result: Plan) -> str:
    """Return whether it fits, on which GPUs, split how."""
    split = (
        f"{result.gpus} × {result.gpu}{f' on {result.nodes} nodes' if result.nodes > 1 else ''}: "
        f"tensor parallel {result.tensor_parallel_size} × "
        f"pipeline parallel {result.pipeline_parallel_size}"
    )
    if result.data_parallel_size > 1:
        split += f" × data parallel {result.data_parallel_size}"
    if result.deployment.model.pooling:
        split += f". It computes {result.deployment.model.pooling} and generates no text"
    if not result.fit.holds_a_request:
        return verdict("bad", f"✗ {result.model} does not fit", split)
    if result.refusals:
        reasons = "; ".join(finding.what for finding in result.refusals)
        return verdict("bad", f"✗ vLLM would refuse to start: {reasons}", split)
    if not result.command:
        return verdict(
            "unsure", f"? It would fit by its sizes, but {result.deployment.refused}", split
        )
    if result.may_not_start:
        doubt = f"; it may not start: {result.start_doubt}"
        return verdict("unsure", f"✓ {result.model} fits{doubt}", split)
    return verdict("good", f"✓ {result.model} fits", split)


def verdict(kind: str, text: str, more: str = "") -> str:
    """Return a sentence with an edge in the color of what it says: good, bad or unsure."""
    return f'<p class="verdict {kind}"><b>{html.escape(text)}</b> {html.escape(more)}</p>'


def memory(result: Plan) -> str:
    """Draw the memory of one GPU and its parts; what it lacks is hatched."""
    gpu_gib = result.deployment.gpu.engine_gib
    used = result.weights_gib_per_gpu + result.overhead_gib_per_gpu
    rest = "KV cache" if result.fit.has_cache else "free"
    parts = [
        ("weights", "weights", result.weights_gib_per_gpu),
        ("work space", "overhead", result.overhead_gib_per_gpu),
        (rest, "kv", max(0.0, result.requested_gib_per_gpu - used)),
        ("not used by vLLM", "free", gpu_gib - result.requested_gib_per_gpu),
    ]
    title = f"One GPU: {gpu_gib:,.1f} GiB"
    missing = ""
    if used > gpu_gib:
        title = f"One GPU needs {used:,.1f} GiB and has {gpu_gib:,.1f}"
        parts = parts[:2]
        missing = f'<u style="left:{100 * gpu_gib / used:.2f}%"></u>'
    bar = "".join(
        f'<i class="{color}" style="flex-grow:{size:.3f}"></i>' for _, color, size in parts
    )
    legend = "".join(
        f'<span><i class="{color}"></i>{name} <b>{size:,.1f}</b></span>'
        for name, color, size in parts
    )
    return (
        f'<h2>{title}</h2><div class="bar" aria-hidden="true">{bar}{missing}</div>'
        f'<p class="legend">{legend}</p>'
    )


def figures(result: Plan) -> str:
    """Return the most important figures, with how sure they are."""
    tiles = []
    half = report.plus_minus(result).replace(" ", "\u00a0")
    if result.fit.has_cache:
        tiles += [
            (f"{result.kv_cache_tokens:,}", f"tokens of KV cache ({half})"),
            (
                f"{result.max_concurrency:,.2f}",
                f"requests of {result.deployment.settings.max_model_len:,} tokens at once",
            ),
            (f"{result.kv_bytes_per_token:,}", "bytes of KV cache a token"),
        ]
    if result.has_speed and result.decode:
        speed = result.intervals["single_stream_tokens_per_s"]
        meaning = f"tokens/s for one request ({speed.low:,.0f} to {speed.high:,.0f})"
        tiles.append((f"{result.single_stream_tokens_per_s:,.0f}", meaning))
    drawn = "".join(
        f"<div><b>{html.escape(number)}</b>{html.escape(meaning)}</div>"
        for number, meaning in tiles
    )
    ground = f"vLLM {result.deployment.settings.vllm_version}; {result.basis}: nine of ten measured figures lie within the ranges."
    return f'<div class="figures">{drawn}</div><p class="ground">{html.escape(ground)}</p>'


def sentences(title: str, lines: list[str]) -> str:
    """Return a list below its title; nothing if there is none."""
    if not lines:
        return ""
    rows = "".join(f"<li>{with_flags(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{rows}</ul>"


def with_flags(text: str) -> str:
    """Return a text as HTML, in which no flag is broken over two lines."""
    return FLAG.sub(r"<code>\g<0></code>", html.escape(text))
