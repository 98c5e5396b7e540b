"""The picture of the memory sliders: a bar for each GPU, the verdict, four numbers, the command.

The functions are pure: a result in, HTML out.
"""

from inference_planner.answer.command import command_of
from inference_planner.model.kv_cache import kv_cache_bytes_per_token

from workshop.course.drawing.html import (
    Html,
    bold,
    code,
    div,
    join,
    legend,
    muted,
    panel,
    span,
    tag,
    tiles,
)
from workshop.course.drawing.html import verdict as at_the_edge
from workshop.course.drawing.readable_numbers import gib
from workshop.course.widgets.memory.case import Memory, MemoryStage, verdict, weight_words

NO_BREAK = "\u00a0"
BARS = 8  # GPUs beyond so many are drawn a stage at a time
HEIGHTS_PX = {1: 40, 2: 30, 3: 20, 4: 20}  # of a bar, by how many there are
SIGNS = {"fits": ("✓", "good"), "waits": ("!", "warn"), "refused": ("✗", "bad")}
KEYS = (
    ("bg-weights edge", "weights"),
    ("bg-overhead edge", "work space (activations, kernels, buffers)"),
    ("bg-kv edge", "KV cache of your requests"),
    ("bg-empty edge", "KV cache still free"),
    ("bg-free edge", "not for vLLM"),
    ("too-much edge", "too much"),
)


def picture(result: Memory, remedies: bool = True) -> Html:
    head, _, remedy = verdict(result, remedies).partition(" Nearest remedy: ")
    sign, kind = SIGNS[result.state]
    more = []
    if remedy:
        more = [div("→ Nearest remedy: ", bold(remedy))]
    edge = at_the_edge(sign, f"{kind} tall", head, *more)
    parts = (edge, *_bars(result), legend(KEYS, cls="beside-name"), _tiles(result))
    # A picture is one thing to a screen reader: the command, which is to be copied, stands outside
    # of it.
    drawn = panel(*parts, label=spoken(result, remedies))
    return join([drawn, panel(code(command_of(result.deployment)))])


def spoken(result: Memory, remedies: bool = True) -> str:
    """Return the picture in words, for a screen reader."""
    stage, case, gpu = result.tightest, result.case, result.deployment.gpu
    sizes = (
        f"weights {gib(stage.weights)}",
        f"work space {gib(stage.overhead)}",
        f"KV cache asked for {gib(stage.requested_kv)}",
        f"room for KV cache {gib(max(0, stage.room))}",
        f"limit {gib(result.fit.requested)} of {gib(gpu.engine_bytes)}",
    )
    hardware = f"Memory of {case.model} on {case.gpus} {gpu.title}."
    return f"{hardware} {verdict(result, remedies)} On one GPU: {', '.join(sizes)}."


def _bars(result: Memory) -> tuple[Html, ...]:
    """One bar a GPU on one axis: as long as the GPU, or as what is asked for if that is more."""
    gpu_bytes = result.deployment.gpu.engine_bytes
    longest = max(stage.needed for stage in result.stages)
    axis = max(gpu_bytes * 1.01, min(longest, 2.2 * gpu_bytes))
    stages = _drawn_stages(result)
    rows = []
    for stage in stages:
        for name in _names(stage, result.case.gpus):
            rows.append((f"GPU {name}", stage))
    height = HEIGHTS_PX.get(len(rows), 15)
    bars = [_row(name, stage, result, axis, height) for name, stage in rows]
    parts = [_scale(result, axis), div(*bars, style=f"--h:{height}px")]
    left_out = len(result.stages) - len(stages)
    if left_out:
        parts.append(muted(f"… and {left_out} stages like these", cls="beside-name"))
    return tuple(parts)


def _drawn_stages(result: Memory) -> tuple[MemoryStage, ...]:
    """Return the stages that get a bar: of many the first few and the last."""
    if result.case.gpus <= BARS or len(result.stages) <= BARS:
        return result.stages
    return *result.stages[: BARS - 1], result.stages[-1]


def _names(stage: MemoryStage, gpus: int) -> list[str]:
    """Return the numbers of the GPUs of a stage, each its own bar; of many GPUs one bar a stage."""
    first, last = stage.gpus
    if gpus <= BARS:
        return list(map(str, range(first, last + 1)))
    if first == last:
        return [str(first)]
    return [f"{first}–{last}"]


def _scale(result: Memory, axis: float) -> Html:
    """The scale above the bars: the memory of the GPU, and how much of it vLLM may use."""
    gpu = result.deployment.gpu
    gpu_scale = span(f"{gpu.title}: the engine sees ", bold(gib(gpu.engine_bytes)))
    share = f"× {result.case.gpu_memory_utilization:g} = vLLM may use "
    place = f"right:calc(100% - {_percent(result.fit.requested, axis)})"
    usable = span(share, bold(gib(result.fit.requested)), " ▾", style=place)
    return div(gpu_scale, usable, cls="scale")


def _row(name: str, stage: MemoryStage, result: Memory, axis: float, height: int) -> Html:
    pieces = [_piece(0, result.deployment.gpu.engine_bytes, axis, "whole-gpu")]
    limit = result.fit.requested
    at = 0
    for size, look, what in (
        (stage.weights, "bg-weights", "weights"),
        (stage.overhead, "bg-overhead", "overhead"),
        (stage.used, "bg-kv", "KV in use"),
        (stage.room - stage.requested_kv, "bg-empty", "KV free"),
    ):
        shown = max(0, min(size, limit - at))
        if shown > 0:
            # Where both do not stand on the one visible line, the number wraps below it; the title
            # has both.
            text = ""
            if height >= 20 and shown > axis * 0.18:
                text = f"{what} {gib(size).replace(' ', NO_BREAK)}"
            pieces.append(_piece(at, shown, axis, look, f"{what}: {gib(size)}", text))
        at += shown
    over = stage.needed - limit
    if over > 0:
        cut = ""
        if stage.needed > axis:
            cut = "▶"
        drawn = min(over, axis - limit)
        pieces.append(_piece(limit, drawn, axis, "too-much", f"{gib(over)} too much", cut))
    pieces.append(tag("i", cls="limit", style=f"left:{_percent(limit, axis)}"))
    return div(span(name), span(*pieces), cls="gpu")


def _piece(
    start: float, size: float, axis: float, look: str, title: str = "", text: str = ""
) -> Html:
    place = f"left:{_percent(start, axis)};width:{_percent(size, axis)}"
    tip = ""
    if title:
        tip = f' title="{title}"'
    return Html(f'<span class="piece {look}" style="{place}"{tip}>{text}</span>')


def _tiles(result: Memory) -> Html:
    stage, case, model = result.tightest, result.case, result.deployment.model
    total = result.fit.tp * sum(stage.weights for stage in result.stages)
    precision = weight_words(model, case.weights)
    kib = kv_cache_bytes_per_token(model, case.kv_cache_dtype) / 1024
    per_token = f"{kib:,.1f} KiB".replace(".0 ", " ")
    tokens, about_tokens = "0", "vLLM's log: “GPU KV cache size”"
    concurrency = "0×"
    if result.state != "refused":
        tokens, about_tokens = f"{result.fit.capacity.tokens:,}", _range(result)
        concurrency = f"{result.max_concurrency:.2f}×"
    items = (
        (gib(stage.weights), "weights on each GPU", f"{gib(total)} in all; {precision}"),
        (
            gib(max(0, stage.room)),
            "room for KV cache on each GPU",
            f"{per_token} per token, on all GPUs together",
        ),
        (tokens, "tokens of KV cache", about_tokens),
        (
            concurrency,
            f"requests of {case.context:,} tokens",
            "vLLM's log: “Maximum concurrency”",
        ),
    )
    return tiles(items, columns=2)


def _range(result: Memory) -> str:
    """Return the interval of the tokens, and what it rests on."""
    low, high = result.tokens.low, result.tokens.high
    return f"{low:,.0f} to {high:,.0f} in vLLM's log ({result.ground.basis})"


def _percent(size: float, axis: float) -> str:
    return f"{100 * size / axis:.3f}%"
