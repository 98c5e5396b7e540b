"""The picture of the memory sliders: a bar for each GPU, the verdict, four numbers, the command. Pure: text out."""

from inference_planner.command import command
from inference_planner.kv_cache import kv_cache_bytes_per_token

from workshop.course.html import Html, bold, code, div, join, legend, muted, panel, span, tag, tiles
from workshop.course.html import verdict as at_the_edge
from workshop.course.numbers import gib
from workshop.course.widgets.memory.case import Memory, Stage, verdict, weight_words

NO_BREAK = "\u00a0"
BARS = 8  # GPUs beyond so many are drawn a stage at a time
HEIGHTS_PX = {1: 40, 2: 30, 3: 20, 4: 20}  # of a bar, by how many there are
SIGNS = {"fits": ("✓", "good"), "waits": ("!", "warn"), "refused": ("✗", "bad")}
KEYS = (
    ("bg-weights edge", "weights"),
    ("bg-overhead edge", "overhead (activations, kernels, buffers)"),
    ("bg-kv edge", "KV cache of your requests"),
    ("bg-free edge", "KV cache still free"),
    ("too-much edge", "too much"),
)


def picture(result: Memory, remedies: bool = True) -> Html:
    head, _, remedy = verdict(result, remedies).partition(" Nearest remedy: ")
    sign, kind = SIGNS[result.state]
    edge = at_the_edge(
        sign, f"{kind} tall", head, *[div("→ Nearest remedy: ", bold(remedy))] * bool(remedy)
    )
    parts = (edge, *_bars(result), legend(KEYS, cls="beside-name"), _tiles(result))
    # A picture is one thing to a screen reader: the command, which is to be copied, stands outside of it.
    return join(
        [panel(*parts, label=spoken(result, remedies)), panel(code(command(result.deployment)))]
    )


def spoken(result: Memory, remedies: bool = True) -> str:
    stage, case, gpu = result.tightest, result.case, result.deployment.gpu
    parts = f"weights {gib(stage.weights)}, overhead {gib(stage.overhead)}, KV cache asked for {gib(stage.asked)}"
    limit = f"room for KV cache {gib(max(0, stage.room))}, limit {gib(result.fit.requested)} of {gib(gpu.engine_bytes)}"
    where = f"Memory of {case.model} on {case.gpus} {gpu.title}."
    return f"{where} {verdict(result, remedies)} On one GPU: {parts}, {limit}."


def _bars(result: Memory) -> tuple[Html, ...]:
    """One bar a GPU on one axis: as long as the GPU, or as what is asked for if that is more."""
    gpu, most = result.deployment.gpu, max(s.needed for s in result.stages)
    axis = max(gpu.engine_bytes * 1.01, min(most, 2.2 * gpu.engine_bytes))
    alone = result.case.gpus <= BARS
    stages = (
        result.stages
        if alone or len(result.stages) <= BARS
        else (*result.stages[: BARS - 1], result.stages[-1])
    )
    rows = []
    for s in stages:
        first, last = s.gpus
        each = range(first, last + 1) if alone else [f"{first}–{last}" if first < last else first]
        rows += [(f"GPU {name}", s) for name in each]
    height, left_out = HEIGHTS_PX.get(len(rows), 15), len(result.stages) - len(stages)
    drawn = [_row(name, s, result, axis, height) for name, s in rows]
    note = [muted(f"… and {left_out} stages like these", cls="beside-name")] * bool(left_out)
    # Above the bars stands how long the GPU is, and how much of it vLLM may use.
    seen = span(f"{gpu.title}: the engine sees ", bold(gib(gpu.engine_bytes)))
    place = f"right:calc(100% - {_percent(result.fit.requested, axis)})"
    share = f"× {result.case.gpu_memory_utilization:g} = vLLM may use "
    scale = div(seen, span(share, bold(gib(result.fit.requested)), " ▾", style=place), cls="scale")
    return scale, div(*drawn, style=f"--h:{height}px"), *note


def _row(name: str, s: Stage, result: Memory, axis: float, height: int) -> Html:
    pieces, at = [_piece(0, result.deployment.gpu.engine_bytes, axis, "whole-gpu")], 0
    limit = result.fit.requested
    for size, look, what in (
        (s.weights, "bg-weights", "weights"),
        (s.overhead, "bg-overhead", "overhead"),
        (s.used, "bg-kv", "KV in use"),
        (s.room - s.asked, "clear", "KV free"),
    ):
        shown = max(0, min(size, limit - at))
        if shown > 0:
            # Where both do not stand on the one visible line, the number wraps below it; the title has both.
            room = height >= 20 and shown > axis * 0.18
            text = f"{what} {gib(size).replace(' ', NO_BREAK)}" if room else ""
            pieces.append(_piece(at, shown, axis, look, f"{what}: {gib(size)}", text))
        at += shown
    over = s.needed - limit
    if over > 0:
        cut = "▶" if s.needed > axis else ""
        pieces.append(
            _piece(limit, min(over, axis - limit), axis, "too-much", f"{gib(over)} too much", cut)
        )
    pieces.append(tag("i", cls="limit", style=f"left:{_percent(limit, axis)}"))
    return div(span(name), span(*pieces), cls="gpu")


def _piece(
    start: float, size: float, axis: float, look: str, title: str = "", text: str = ""
) -> Html:
    place, tip = (
        f"left:{_percent(start, axis)};width:{_percent(size, axis)}",
        f' title="{title}"' if title else "",
    )
    return Html(f'<span class="piece {look}" style="{place}"{tip}>{text}</span>')


def _tiles(result: Memory) -> Html:
    stage, fits, model = result.tightest, result.state != "refused", result.deployment.model
    total = sum(s.weights * result.fit.tp for s in result.stages)
    each = f"{kv_cache_bytes_per_token(model, result.case.kv_cache_dtype) / 1024:,.1f} KiB".replace(
        ".0 ", " "
    )
    concurrency = f"{result.max_concurrency:.2f}×" if fits else "0×"
    items = (
        (
            gib(stage.weights),
            "weights on a GPU",
            f"{gib(total)} in all; {weight_words(model, result.case.weights)}",
        ),
        (
            gib(max(0, stage.room)),
            "room for KV cache on a GPU",
            f"{each} a token, over the whole model",
        ),
        (
            f"{result.fit.capacity.tokens:,}" if fits else "0",
            "tokens of KV cache",
            _range(result) if fits else "vLLM's log: “GPU KV cache size”",
        ),
        (
            concurrency,
            f"requests of {result.case.context:,} tokens",
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
